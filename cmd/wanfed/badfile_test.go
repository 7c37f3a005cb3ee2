// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/settings"
)

// An endless device in place of a file fails at the size limit of that file.
func TestEndlessFile(t *testing.T) {
	const zero = "/dev/zero"
	if _, err := os.Stat(zero); err != nil {
		t.Skip("no /dev/zero")
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"validate", zero}, 1, "/dev/zero has more than 16777216 bytes"},
		{[]string{"server", "--config-file", zero}, 2, "/dev/zero has more than 1048576 bytes"},
		{[]string{"gateway", "--listen", "127.0.0.1:0", "--routes", zero}, 1, "/dev/zero has more than 16777216 bytes"},
		{[]string{"tls", "inspect", zero}, 1, "/dev/zero has more than 4194304 bytes"},
		{[]string{"tls", "cert", "create", "--operator", "--datacenter", "dc1", "--ca-file", zero,
			"--ca-key-file", zero},
			1, "/dev/zero has more than 4194304 bytes"},
		{[]string{"status", "--http-addr", "https://127.0.0.1:1", "--ca-file", zero, "--cert-file", zero,
			"--key-file", zero},
			1, "has more than 4194304 bytes"},
	} {
		t.Run(strings.Join(tt.args[:2], " "), func(t *testing.T) {
			got := execute(t, nil, tt.args...)
			if all := got.stdout + got.stderr; got.code != tt.code || !strings.Contains(all, tt.want) {
				t.Errorf("wanfed %s: exit status = %d, output %.300s, want %d, %s",
					tt.args, got.code, all, tt.code, tt.want)
			}
		})
	}
}

// Commands that read settings fail with a short error for files that are not
// settings.
func TestGarbageFile(t *testing.T) {
	dir := t.TempDir()
	repeat := func(s string, size int) string { return strings.Repeat(s, size/len(s)) }
	for _, tt := range []struct{ name, file, want string }{
		{"binary.hcl", "route \"a.b\" {\n\xff\xfe\x00", "FILE is not a text file"},
		{"brackets.hcl", "a = 1\nb = " + repeat("[", settings.MaxFile/4), "FILE is nested too deep"},
		{"parens.hcl", "a = " + repeat("(", settings.MaxFile/4), "FILE is nested too deep"},
		{"blocks.hcl", repeat("a {\n", settings.MaxFile/4), "FILE is nested too deep"},
		{"template.hcl", "a = \"" + repeat("${\"", settings.MaxFile/4), "FILE is nested too deep"},
		{"brackets.json", "{\"a\": \"[\",\n\"b\": x, " + repeat("[", settings.MaxFile/4), "FILE is nested too deep"},
		{"objects.json", repeat("{\"a\":", settings.MaxFile/4), "FILE is nested too deep"},
		{"words.hcl", "not a setting", "FILE:1,"},
	} {
		path := filepath.Join(dir, tt.name)
		writeFile(t, path, tt.file)
		want := strings.ReplaceAll(tt.want, "FILE", path)
		for _, args := range [][]string{
			{"validate", path}, {"gateway", "--listen", "127.0.0.1:0", "--routes", path},
			{"server", "--config-file", path},
		} {
			t.Run(args[0]+" "+tt.name, func(t *testing.T) {
				got := execute(t, nil, args...)
				if all := got.stdout + got.stderr; got.code == 0 || !strings.Contains(all, want) || len(all) > 1000 {
					t.Errorf("wanfed %s: exit status = %d, output %.300s, want a short error with %s",
						args, got.code, all, want)
				}
			})
		}
	}
}

func TestValidate_ManyErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "errors.hcl")
	var file strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&file, "b%d = [ 0, -1, -2 ]\n", i)
	}
	writeFile(t, path, file.String())
	got := execute(t, nil, "validate", path)
	if got.code != 1 || strings.Count(got.stdout, "\n") > settings.MaxErrors+1 ||
		!strings.Contains(got.stdout, "more errors") {
		t.Errorf("validate: exit status = %d, stdout %.300s, want 1 and at most %d lines",
			got.code, got.stdout, settings.MaxErrors+1)
	}
}
