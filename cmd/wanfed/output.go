// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// format is the value of --format.
type format string

const (
	formatTable = "table"
	formatJSON  = "json"
)

func (f *format) Set(s string) error {
	if s != formatTable && s != formatJSON {
		return errors.New("it must be table or json")
	}
	*f = format(s)
	return nil
}
func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// printer writes a command's result in the format asked for.
type printer struct {
	w      io.Writer
	format format
}

// print writes v as JSON, or what table makes.
func (p printer) print(v any, table func(w io.Writer) error) error {
	if p.format == formatTable {
		return table(p.w)
	}
	enc := json.NewEncoder(p.w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// writeTable writes aligned columns.
func writeTable(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// printable makes text that came over the network safe for a terminal and for a table's cell.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// age shows seconds in a length that people read; a dash when they are not known.
func age(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	s := max(*seconds, 0)
	d := time.Duration(min(s, 1e9) * float64(time.Second))
	switch {
	case s < 10:
		return d.Round(100 * time.Millisecond).String()
	case s < 24*3600:
		return d.Round(time.Second).String()
	}
	hours := int(s / 3600)
	return fmt.Sprintf("%dd%dh", hours/24, hours%24)
}
