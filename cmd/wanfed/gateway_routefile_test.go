// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkRouteFile reads a file of routes.
func BenchmarkRouteFile(b *testing.B) {
	for _, n := range []int{100, 10000} {
		path := filepath.Join(b.TempDir(), "routes.hcl")
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "route \"*.server.dc%d.wanfed\" { to = [\"10.0.0.1:1\"] }\n", i)
		}
		writeFile(b, path, text.String())
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := readRoutes(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
