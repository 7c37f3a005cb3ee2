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
		{[]string{"server", "--config-file", "/dev/zero"}, 2, "/dev/zero has more than 1048576 bytes"},
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

// TestGarbage: what is no file of settings, whatever it is, is refused soon, in few lines and without an end of the process.
func TestGarbage(t *testing.T) {
	dir := t.TempDir()
	repeat := func(s string, size int) string { return strings.Repeat(s, size/len(s)) }
	for _, c := range []struct {
		name, file, want string // want: of validate
	}{
		{"long.hcl", repeat("a\n", maxSettings+2), "FILE has more than 1048576 bytes, and no route in the first 65536: is it the right file?"},
		{"line.hcl", repeat("a", maxRouteFile), "FILE has more than 1048576 bytes, and no route"},
		{"long.json", "[" + repeat("0,", maxSettings), "FILE has more than 1048576 bytes, and no route"},
		{"brackets.hcl", "a = 1\nb = " + repeat("[", maxSettings/4), "FILE:2: more than 100 brackets or operators within each other"},
		{"parens.hcl", "a = " + repeat("(", maxSettings/4), "FILE:1: more than 100 brackets"},
		{"blocks.hcl", repeat("a {\n", maxSettings/4), "FILE:101: more than 100 brackets"},
		{"late.hcl", repeat("a = 1\n", 2*depthHead) + "b = " + repeat("[", depthHead), "FILE:1366: more than 100 brackets"},
		{"template.hcl", "a = \"" + repeat("${\"", maxSettings/4), "FILE:1: more than 100 brackets"},
		{"if.hcl", "a = \"" + repeat("%{if b}", maxSettings/4), "FILE:1: more than 100 brackets"},
		{"operators.hcl", "a = " + repeat("!", maxSettings/4), "FILE:1: more than 100 brackets"},
		{"choices.hcl", "a = " + repeat("b ? c : ", maxSettings/4), "FILE:1: more than 100 brackets"},
		{"lines.hcl", "a = (" + repeat("!\n", maxSettings/4), "FILE:100: more than 100 brackets"},
		{"brackets.json", "{\"a\": \"[\",\n\"b\": x, " + repeat("[", maxSettings/4), "FILE:2: more than 100 brackets"},
		{"objects.json", repeat("{\"a\":", maxSettings/4), "FILE:1: more than 100 brackets"},
	} {
		path := filepath.Join(dir, c.name)
		write(t, path, c.file)
		want := strings.ReplaceAll(c.want, "FILE", path)
		for _, args := range [][]string{{"validate", path}, {"gateway", "--listen", "127.0.0.1:0", "--routes", path}, {"server", "--config-file", path}} {
			if args[0] == "server" && len(c.file) > maxSettings {
				want = path + " has more than 1048576 bytes: is it the right file?"
			}
			got := execute(t, nil, args...)
			if all := got.stdout + got.stderr; got.code == 0 || !strings.Contains(all, want) || len(all) > 1000 {
				t.Errorf("%s: exit status %d, said %.300s; want %s", args, got.code, all, want)
			}
		}
	}
	path := filepath.Join(dir, "faults.hcl")
	write(t, path, repeat("b = [ 0, -1, -2 ]\n", maxSettings/4))
	if got := execute(t, nil, "validate", path); got.code != 1 || strings.Count(got.stdout, "\n") > maxFaults+1 || !strings.Contains(got.stdout, "more faults") {
		t.Errorf("exit status %d, said %.300s", got.code, got.stdout)
	}
	if _, err := readHCL("r.hcl", []byte("data = "+repeat("[", 1000))); err == nil || !strings.HasPrefix(err.Error(), "r.hcl:1: more than 100 brackets") {
		t.Error("resources:", err)
	}
	if _, err := readHCL("r.hcl", make([]byte, maxHCL+1)); err == nil || !strings.Contains(err.Error(), "JSON") {
		t.Error("resources:", err)
	}
}

// TestDepth: what people write nests as deep as it likes, beside what it nests in and one after the other.
func TestDepth(t *testing.T) {
	for _, src := range []string{
		strings.Repeat("route \"a\" { to = [\"h:1\", \"(((\"] }\n", 1000),
		"a = [" + strings.Repeat("-1, ", 1000) + "]\n", "data {\n" + strings.Repeat("  x = -1\n", 1000) + "}\n",
		"a = " + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "\n", strings.Repeat("# [{(\n", 1000),
		"a = <<EOT\n" + strings.Repeat("[{( ${b}\n", 1000) + "EOT\n",
		"a = 1\n/*\n" + strings.Repeat("[{( ${b}\n", 1000) + "*/\n", strings.Repeat("#", depthHead-50) + "\n/*" + strings.Repeat("[", 1000) + "*/\n",
		"a = \"" + strings.Repeat("[", depthHead) + "\"\n",
	} {
		if line, ok := hclDepth([]byte(src)); !ok {
			t.Errorf("line %d of %.60q", line, src)
		}
	}
	if line, ok := jsonDepth([]byte(`{"a": [` + strings.Repeat(`"[\"{", {}, `, 1000) + `0]}`)); !ok {
		t.Errorf("line %d of JSON", line)
	}
}
