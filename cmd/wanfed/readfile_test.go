// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEndlessFile: a name that is a device's without an end costs the bound of its kind, and says what is wrong.
func TestEndlessFile(t *testing.T) {
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("no /dev/zero")
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"validate", "/dev/zero"}, 1, "/dev/zero has more than 16777216 bytes"},
		{[]string{"server", "--config-file", "/dev/zero"}, 2, "/dev/zero has more than 16777216 bytes"},
		{[]string{"gateway", "--listen", "127.0.0.1:0", "--routes", "/dev/zero"}, 1, "/dev/zero has more than 16777216 bytes"},
		{[]string{"tls", "inspect", "/dev/zero"}, 1, "/dev/zero has more than 4194304 bytes"},
		{[]string{"tls", "cert", "create", "--cli", "--dc", "dc1", "--ca", "/dev/zero", "--key", "/dev/zero"}, 1, "/dev/zero has more than 4194304 bytes"},
		{[]string{"status", "--http-addr", "https://127.0.0.1:1", "--ca-file", "/dev/zero", "--cert-file", "/dev/zero", "--key-file", "/dev/zero"}, 1, "has more than 4194304 bytes"},
	} {
		got := execute(t, nil, c.args...)
		if all := got.stdout + got.stderr; got.code != c.code || !strings.Contains(all, c.want) {
			t.Errorf("%s: exit status %d, said %.300s; want %d, %s", c.args, got.code, all, c.code, c.want)
		}
	}
	if _, err := readAtMost(endless{}, "stdin", 100); err == nil || err.Error() != "stdin has more than 100 bytes: is it the right file?" {
		t.Error("stdin without an end:", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestNoText: a file that is no text has one fault, and what has very many tells some of them.
func TestNoText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "routes.hcl")
	write := func(b []byte) {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("route \"a.b\" {\n\xff\xfe\x00"))
	if _, err := readRoutes(path); err == nil || err.Error() != path+" is no text file" {
		t.Error(err)
	}
	write(bytes.Repeat([]byte("route \"a.b\" { to = [] }\n"), 1000))
	if _, err := readRoutes(path); err == nil || strings.Count(err.Error(), "\n") != maxFaults+1 || !strings.Contains(err.Error(), " more") {
		t.Error(err)
	}
}
