// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestJoin(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	both := fmt.Errorf("%w because of %w", a, b)
	for _, tt := range []struct {
		name string
		in   []error
		want string
	}{
		{"none", nil, ""},
		{"one", []error{nil, a}, "a"},
		{"one of two", []error{both}, "a because of b"},
		{"joined", []error{errors.Join(a, both), Join(a, b)}, "4 errors:\n  - a\n  - a because of b\n  - a\n  - b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := Join(tt.in...); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("Join(%v) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestJoin_ManyErrors(t *testing.T) {
	err := Join(slices.Repeat([]error{errors.New("a"), errors.New("b")}, MaxErrors)...)
	if n := strings.Count(err.Error(), "\n"); n != MaxErrors+1 || !strings.Contains(err.Error(), "and 50 more") {
		t.Errorf("Join() of %d errors has %d lines, want %d:\n%v", 2*MaxErrors, n, MaxErrors+1, err)
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestReadAll_Endless(t *testing.T) {
	_, err := ReadAll(endless{}, "stdin", 100)
	if want := "stdin has more than 100 bytes; check that it is the right file"; err == nil || err.Error() != want {
		t.Errorf("ReadAll() = %v, want %s", err, want)
	}
}

// TestParse_Nesting checks that Parse accepts many brackets with little
// nesting.
func TestParse_Nesting(t *testing.T) {
	for name, src := range map[string]string{
		"blocks":   strings.Repeat("route \"a\" { to = [\"h:1\", \"(((\"] }\n", 1000),
		"lists":    "a = [" + strings.Repeat("-1, ", 1000) + "]\n",
		"deep":     "a = " + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "\n",
		"comments": strings.Repeat("# [{(\n", 1000),
		"string":   "a = \"" + strings.Repeat("[", 4000) + "\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("a.hcl", []byte(src)); err != nil {
				t.Errorf("Parse() = %v, want nil", err)
			}
		})
	}
}

func TestParseNetwork(t *testing.T) {
	got := Networks([]string{"10.0.0.0/8", "2001:db8::/32", "192.0.2.1", "2001:db8::1"})
	want := "[10.0.0.0/8 2001:db8::/32 192.0.2.1/32 2001:db8::1/128]"
	if fmt.Sprint(got) != want {
		t.Errorf("Networks() = %v, want %s", got, want)
	}
	for text, want := range map[string]string{
		"10.0.0.0/33":  "is not a network",
		"10.1.2.3/8":   "has host bits; write 10.0.0.0/8 for the network or 10.1.2.3 for the address",
		"fe80::1%eth0": "is not a network",
		"host":         "is not a network",
	} {
		if _, err := ParseNetwork(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseNetwork(%q) = %v, want an error with %q", text, err, want)
		}
	}
}

// TestParse_FirstSyntaxError checks that Parse reports only the first of
// several syntax errors, because a missing quote makes the rest of the file a
// string.
func TestParse_FirstSyntaxError(t *testing.T) {
	_, err := Parse("a.hcl", []byte("node = \"srv1\ndc = \"dc1\"\nport = 8300\nbind = \"10.0.0.5\"\n"))
	if err == nil || !strings.HasPrefix(err.Error(), "a.hcl:1,") || strings.Count(err.Error(), "a.hcl:") != 1 {
		t.Errorf("Parse() = %v, want the error in line 1 alone", err)
	}
}

func TestNewLogger_RemovesTextOfGRPC(t *testing.T) {
	var b strings.Builder
	log, err := NewLogger(&b, slog.LevelInfo, "json")
	if err != nil {
		t.Fatal(err)
	}
	wrapped := errors.New("register: rpc error: code = Unavailable desc = no leader")
	log.Info("m", "err", wrapped)
	log.Info("m", "err", wrapped.Error())
	if got := b.String(); strings.Count(got, `"err":"register: no leader"`) != 2 {
		t.Errorf("log = %s, want the error register: no leader twice", got)
	}
}

type ready string

func (r ready) String() string { return string(r) }

func TestPrintReady(t *testing.T) {
	for format, want := range map[string]string{
		"text": "listening\n", "json": `"level":"INFO","msg":"ready","listens":"listening"}` + "\n",
	} {
		var b strings.Builder
		PrintReady(&b, format, ready("listening"))
		if !strings.HasSuffix(b.String(), want) {
			t.Errorf("PrintReady(%s) = %q, want %q at the end", format, b.String(), want)
		}
	}
}
