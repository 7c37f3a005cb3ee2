// SPDX-License-Identifier: MPL-2.0

package output

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/wanfed/wanfed/api"
)

func TestTable_WrapsTheLastColumn(t *testing.T) {
	var b strings.Builder
	detail := "this server cannot write its log in " + strings.Repeat("/directory", 12) +
		": no space left on device; free disk space"
	err := Printer{W: &b, Format: Table}.Table([][]string{
		{"Component", "State", "Detail"},
		{"log", "cannot be written", detail},
		{"raft", "ok", "leader srv1"},
	})
	if err != nil {
		t.Fatalf("Table() = %v, want nil", err)
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
		t.Errorf("Table() = %s, want all of the detail", b.String())
	}
	if !strings.Contains(b.String(), "\nraft       ok                 leader srv1\n") {
		t.Errorf("Table() = %s, want aligned rows", b.String())
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_400: "999.4 kB", 999_600: "1.0 MB",
		5_300_000_000: "5.3 GB", 2e15: "2000000.0 GB",
	} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestAge_Format(t *testing.T) {
	for want, in := range map[string]*float64{
		"-": nil, "0s": api.SecondsPtr(-time.Second), "1.2s": api.SecondsPtr(1234 * time.Millisecond),
		"1h2m3s": api.SecondsPtr(3723400 * time.Millisecond), "1d0h": api.SecondsPtr(24 * time.Hour),
		"11574074d1h": new(1e12),
	} {
		if got := Age(in); got != want {
			t.Errorf("Age() = %s, want %s", got, want)
		}
	}
}
