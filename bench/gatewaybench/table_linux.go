// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

func (r report) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

// writeTable writes an aligned table, which is also valid Markdown. After each
// subject, the column "by best" has the ratio to the best peer and whether the
// goal is met. The column "others" has line.Others.
func (r report) writeTable(w io.Writer) error {
	header := []string{"row", "figure", "goal"}
	for _, s := range r.Subjects {
		header = append(header, s, "by best")
	}
	header = append(header, "best")
	for _, c := range r.Contenders {
		if !slices.Contains(r.Subjects, c) {
			header = append(header, c)
		}
	}
	lines := [][]string{append(header, "others")}
	for i, l := range r.Lines {
		name := l.Row
		if i > 0 && r.Lines[i-1].Row == name {
			name = ""
		}
		cells := []string{name, l.Figure, l.Goal}
		var best string
		for _, s := range r.Subjects {
			cells = append(cells, l.text(s), l.Verdicts[s].String())
			best = l.Verdicts[s].Best
		}
		cells = append(cells, best)
		for _, c := range r.Contenders {
			if !slices.Contains(r.Subjects, c) {
				cells = append(cells, l.text(c))
			}
		}
		lines = append(lines, append(cells, number(l.Others)))
	}
	_, err := io.WriteString(w, fmt.Sprintf("%s; medians of %d rounds\n\n%s", r.Machine, r.Rounds, align(lines)))
	for _, f := range r.Failed {
		if err == nil {
			_, err = fmt.Fprintf(w, "\nfailed: %s\n", f)
		}
	}
	return err
}

func (l line) text(name string) string {
	if v, ok := l.Values[name]; ok {
		return number(v.Median)
	}
	return "-"
}

func (v verdict) String() string {
	var s string
	if v.Best != "" {
		s = fmt.Sprintf("%.2fx", v.Ratio)
	}
	switch {
	case v.Met == nil:
		return s
	case *v.Met:
		return strings.TrimSpace(s + " yes")
	}
	return strings.TrimSpace(s + " NO")
}

// number formats v with three significant digits.
func number(v float64) string {
	if math.Abs(v) >= 100 || v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// align formats cells as a table. The first line is the header.
func align(lines [][]string) string {
	width := make([]int, len(lines[0]))
	for _, cells := range lines {
		for i, c := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for i, cells := range lines {
		for j, c := range cells {
			pad := strings.Repeat(" ", width[j]-utf8.RuneCountInString(c))
			if j < 3 {
				b.WriteString("| " + c + pad + " ")
			} else {
				b.WriteString("| " + pad + c + " ")
			}
		}
		b.WriteString("|\n")
		if i == 0 {
			for j, n := range width {
				rule := strings.Repeat("-", n+1)
				if j < 3 {
					b.WriteString("|" + rule + "-")
				} else {
					b.WriteString("|" + rule + ":")
				}
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}
