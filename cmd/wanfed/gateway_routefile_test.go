// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sorted are the lines of an error: HCL finds faults in no certain order.
func sorted(err error) string {
	lines := strings.Split(fmt.Sprint(err), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestRouteFileChanges edits a file at random, and compares what is read again with what a first read gives.
func TestRouteFileChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "routes.hcl")
	r := rand.New(rand.NewPCG(3, 4))
	pieces := []string{
		"# a comment\n", "/*\n", "*/\n", "}\n", "{", "\n", " ", "\"", "x = 1\n", "// route\n", "<<EOT\n", "EOT\n", "routes {\n}\n", "  ordered = true\n", "to = [\"a:1\"]\n",
	}
	block := func() string {
		form := []string{"route \"n%d.example\" { to = [\"10.0.0.%d:1\"] }\n", "route \"*.n%d.example\" {\n  to      = [\"10.0.0.%d:1\", \"b:2\"]\n  ordered = true\n}\n",
			"route \"N%d.example.\" { to = [\"10.0.0.%d:1\"] } # why\n"}[r.IntN(3)]
		return fmt.Sprintf(form, r.IntN(300), 1+r.IntN(200))
	}
	lines := func() (all []string) {
		for range 12 {
			all = append(all, block())
		}
		return all
	}
	var f routeFile
	text, whole, parts := lines(), 0, 0
	for range 400 {
		i := r.IntN(len(text) + 1)
		switch n := r.IntN(20); {
		case n == 0 && r.IntN(2) == 0:
			text = slices.Insert(text, i, pieces[r.IntN(len(pieces))])
		case n == 1:
			text = lines()
		case n < 8 || len(text) < 3 || i == len(text):
			text = slices.Insert(text, i, block())
		case n < 12:
			text[i] = block()
		default:
			text = slices.Delete(text, i, i+1)
		}
		if len(text) > 30 {
			text = text[:10]
		}
		writeFile(t, path, strings.Join(text, ""))
		want, wantErr := readRoutes(path)
		before := f
		got, err := f.read(path)
		if sorted(err) != sorted(wantErr) {
			t.Fatalf("error %v, want %v, of\n%s", err, wantErr, strings.Join(text, ""))
		}
		if err != nil {
			if f.table != before.table {
				t.Fatal("a fault changed the routes")
			}
			continue
		}
		if d := cmp.Diff(want.Routes(), got.Routes()); d != "" {
			t.Fatalf("%s of\n%s\nbefore\n%s", d, f.src, before.src)
		}
		if before.table != nil && before.change(f.src) != nil {
			parts++
		} else {
			whole++
		}
	}
	if parts < 100 {
		t.Errorf("%d files were read in part and %d as a whole", parts, whole)
	}
}

// BenchmarkRouteFile reads a file of routes, and again after one has changed.
func BenchmarkRouteFile(b *testing.B) {
	for _, n := range []int{100, 10000} {
		path := filepath.Join(b.TempDir(), "routes.hcl")
		var text [2]string
		for i := range n {
			for j := range text {
				port := 1
				if i == n/2 {
					port += j
				}
				text[j] += fmt.Sprintf("route \"*.server.dc%d.wanfed\" { to = [\"10.0.0.1:%d\"] }\n", i, port)
			}
		}
		b.Run(fmt.Sprintf("whole/%d", n), func(b *testing.B) {
			writeFile(b, path, text[0])
			for b.Loop() {
				if _, err := readRoutes(path); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("change/%d", n), func(b *testing.B) {
			var f routeFile
			if _, err := f.read(path); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				writeFile(b, path, text[1-i%2])
				b.StartTimer()
				was := f.table
				if now, err := f.read(path); err != nil || now == was {
					b.Fatal(now == was, err)
				}
			}
		})
	}
}
