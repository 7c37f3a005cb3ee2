// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTable_WrapsTheLastColumn(t *testing.T) {
	var b strings.Builder
	detail := "this server cannot write its log in " + strings.Repeat("/directory", 12) +
		": no space left on device; free disk space"
	err := printer{w: &b, format: outputTable}.table([][]string{
		{"Component", "State", "Detail"},
		{"log", "cannot be written", detail},
		{"raft", "ok", "leader srv1"},
	})
	if err != nil {
		t.Fatalf("table() = %v, want nil", err)
	}
	var text strings.Builder
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > tableWidth {
			t.Errorf("line %q has %d characters, want at most %d", line, n, tableWidth)
		}
		text.WriteString(strings.TrimSpace(line))
	}
	// Both texts are compared without spaces, because lines break at spaces.
	if got := strings.ReplaceAll(text.String(), " ", ""); !strings.Contains(got, strings.ReplaceAll(detail, " ", "")) {
		t.Errorf("table() = %s, want all of the detail", b.String())
	}
	if !strings.Contains(b.String(), "\nraft       ok                 leader srv1\n") {
		t.Errorf("table() = %s, want aligned rows", b.String())
	}
}
