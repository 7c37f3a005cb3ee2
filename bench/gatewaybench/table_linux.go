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

// writeTable writes an aligned table, which is also valid Markdown.
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
	cells := [][]string{append(header, "others")}
	for i, l := range r.Lines {
		name := l.Row
		if i > 0 && r.Lines[i-1].Row == name {
			name = ""
		}
		words := []string{name, l.Figure, l.Goal}
		var best string
		for _, s := range r.Subjects {
			words = append(words, l.text(s), l.Verdicts[s].String())
			best = l.Verdicts[s].Best
		}
		words = append(words, best)
		for _, c := range r.Contenders {
			if !slices.Contains(r.Subjects, c) {
				words = append(words, l.text(c))
			}
		}
		cells = append(cells, append(words, number(l.Others)))
	}
	_, err := io.WriteString(w, fmt.Sprintf("%s; medians of %d rounds\n\n%s", r.Machine, r.Rounds, align(cells)))
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
func align(cells [][]string) string {
	width := make([]int, len(cells[0]))
	for _, words := range cells {
		for i, w := range words {
			width[i] = max(width[i], utf8.RuneCountInString(w))
		}
	}
	var b strings.Builder
	for i, words := range cells {
		for j, w := range words {
			pad := strings.Repeat(" ", width[j]-utf8.RuneCountInString(w))
			if j < 3 {
				b.WriteString("| " + w + pad + " ")
			} else {
				b.WriteString("| " + pad + w + " ")
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
