// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// table maps row, contender and figure to the values of the rounds.
type table map[[3]string][]float64

func (t table) add(row, contender string, figures map[string]float64) {
	for name, v := range figures {
		k := [3]string{row, contender, name}
		t[k] = append(t[k], v)
	}
}

func (t table) median(row, contender, figure string) (float64, bool) {
	all := slices.Sorted(slices.Values(t[[3]string{row, contender, figure}]))
	if len(all) == 0 {
		return 0, false
	}
	return all[len(all)/2], true
}

// print prints the medians of each figure. The last column is the figure of the
// floor divided by that of etcd.
func (t table) print(w io.Writer, rows []row) {
	fmt.Fprintln(w, "| row | figure | wanfed | etcd | ratio | goal | floor | of etcd |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range rows {
		figures := map[string]bool{}
		for k := range t {
			if k[0] == r.name {
				figures[k[2]] = true
			}
		}
		for _, f := range slices.Sorted(maps.Keys(figures)) {
			wanfed, _ := t.median(r.name, "wanfed", f)
			etcd, ok := t.median(r.name, "etcd", f)
			if !ok {
				fmt.Fprintf(w, "| %s | %s | %s | | | | | |\n", r.name, f, number(wanfed))
				continue
			}
			floor := " | "
			if v, ok := t.median(r.name, "floor", f); ok {
				floor = fmt.Sprintf("%s | %.2f", number(v), v/etcd)
			}
			ratio := wanfed / etcd
			fmt.Fprintf(w, "| %s | %s | %s | %s | %.2f | %s | %s |\n",
				r.name, f, number(wanfed), number(etcd), ratio, r.verdict(f, ratio), floor)
		}
	}
}

func (r row) verdict(figure string, ratio float64) string {
	for _, g := range r.goals {
		if g.figure != figure {
			continue
		}
		sign, met := "≥", ratio >= g.ratio
		if g.atMost {
			sign, met = "≤", ratio <= g.ratio
		}
		return fmt.Sprintf("%s %.2g %s", sign, g.ratio, map[bool]string{true: "met", false: "not met"}[met])
	}
	return ""
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func formatFigures(figures map[string]float64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		parts = append(parts, number(figures[name])+" "+name)
	}
	return strings.Join(parts, ", ")
}
