// SPDX-License-Identifier: MPL-2.0

package tlsrecord

import (
	"strings"
	"testing"
)

func TestSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
		err  string // part of the error; empty: none
	}{
		{"", 0, ""},
		{"\x16\x03", 0, ""},
		{"\x16\x03\x03\x00", 0, ""},
		{"\x16\x03\x03\x00\x02", HeaderSize + 2, ""},
		{"\x15\x03\x03\x00\x02\x02\x50", HeaderSize + 2, ""},
		{"\x17\x03\x03\x41\x00", MaxSize, ""},
		{"\x17\x03\x03\x41\x01", 0, "invalid length of 16641 bytes"},
		{"\x16\x03\x03\x00\x00", 0, "invalid length of 0 bytes"},
		{"\x13", 0, "not TLS"},
		{"\x16\x02", 0, "not TLS"},
		{"HTTP/1.1 400", 0, `not TLS but text: "HTTP/1.1 400"`},
	} {
		got, err := Size([]byte(tt.in))
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("Size(%q) = %d, %v; want %d, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

func TestDetect(t *testing.T) {
	for in, want := range map[string]string{
		"GET / HTTP/1.1\r\n":   "a plain HTTP request",
		"SSH-2.0-OpenSSH":      "an SSH client",
		"\x16\x03\x01":         "a TLS hello",
		"\x80\x2e\x01":         "an SSL 2.0 hello; the client is too old",
		"G":                    `text: "G"`,
		"\x00\x01":             "binary data: 00 01",
		"a text of many words": `text: "a text of many w"`,
	} {
		if got := Detect([]byte(in)); got != want {
			t.Errorf("Detect(%q) = %q, want %q", in, got, want)
		}
	}
}
