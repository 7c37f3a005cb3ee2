// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// outputFormat is the value of --output.
type outputFormat string

const (
	outputTable outputFormat = "table"
	outputWide  outputFormat = "wide"
	outputJSON  outputFormat = "json"
)

var outputFormats = []string{string(outputTable), string(outputWide), string(outputJSON)}

// Set implements pflag.Value.
func (f *outputFormat) Set(s string) error {
	if !slices.Contains(outputFormats, s) {
		return errors.New("must be table, wide or json")
	}
	*f = outputFormat(s)
	return nil
}

// String implements pflag.Value.
func (f *outputFormat) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *outputFormat) Type() string { return "format" }

// addOutput adds --output to a command.
func addOutput(c *cobra.Command) *outputFormat {
	f := outputTable
	c.Flags().VarP(&f, "output", "o", "table (80 columns), wide (all columns) or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputFormats,
		cobra.ShellCompDirectiveNoFileComp))
	return &f
}

// printer writes the result of a command in the requested format.
type printer struct {
	w      io.Writer
	format outputFormat
}

// wide reports whether tables have all columns.
func (p printer) wide() bool { return p.format == outputWide }

// print writes v as JSON if the format is json. Otherwise it calls table.
func (p printer) print(v any, table func() error) error {
	if p.format != outputJSON {
		return table()
	}
	enc := json.NewEncoder(p.w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// tableWidth is the maximum number of characters of a line, except in wide
// output.
const tableWidth = 80

// table writes rows as aligned columns. The first row has the titles. Unless
// the output format is wide, the text of the last column is wrapped so that no
// line is longer than tableWidth.
func (p printer) table(rows [][]string) error {
	var b strings.Builder
	if err := writeFields(&b, rows); err != nil {
		return err
	}
	titles, _, _ := strings.Cut(b.String(), "\n")
	last := utf8.RuneCountInString(strings.TrimSuffix(strings.TrimRight(titles, " "), rows[0][len(rows[0])-1]))
	for line := range strings.Lines(b.String()) {
		line = strings.TrimRight(line, " \n")
		if !p.wide() {
			// The lines of a wrapped text begin under the title of the last
			// column, or farther left if that leaves less than a quarter of
			// the line.
			line = wrapFrom(line, min(last, tableWidth*3/4))
		}
		if _, err := fmt.Fprintln(p.w, line); err != nil {
			return err
		}
	}
	return nil
}

// wrap breaks a line at tableWidth, unless the output is wide. All lines but
// the first are indented.
func (p printer) wrap(line string, indent int) string {
	if p.wide() {
		return line
	}
	return wrapFrom(line, indent)
}

// wrapFrom breaks a line into lines of at most tableWidth characters, at spaces
// where possible. All lines but the first are indented.
func wrapFrom(line string, indent int) string {
	var b strings.Builder
	rest := []rune(line)
	for start := 0; ; start = indent {
		width := tableWidth - start
		if len(rest) <= width {
			return b.String() + string(rest)
		}
		end, next := width, width
		for i := width; i > indent-start; i-- {
			if rest[i] == ' ' {
				end, next = i, i+1
				break
			}
		}
		b.WriteString(strings.TrimRight(string(rest[:end]), " ") + "\n" + strings.Repeat(" ", indent))
		rest = rest[next:]
	}
}

// writeFields writes aligned columns of any width.
func writeFields(w io.Writer, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = printable(cell)
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

// printable replaces the characters of s that could control a terminal or break
// a table.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// age formats a number of seconds, or "-" for nil.
func age(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	s := max(*seconds, 0)
	if hours := int(s / 3600); hours >= 24 {
		return fmt.Sprintf("%dd%dh", hours/24, hours%24)
	}
	precision := time.Second
	if s < 10 {
		precision = 100 * time.Millisecond
	}
	return time.Duration(s * float64(time.Second)).Round(precision).String()
}

// size formats a number of bytes.
func size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB"} {
		if f /= 1000; f < 999.5 { // above, the next unit is shorter: 1.0 MB, not 999.9 kB
			break
		}
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// timestamp formats a time, or "-" for the zero time.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}
