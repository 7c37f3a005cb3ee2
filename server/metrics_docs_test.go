// SPDX-License-Identifier: MPL-2.0

package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsAreDocumented: the docs name each metric of a server, and none that there is not.
func TestMetricsAreDocumented(t *testing.T) {
	all := func(pattern string) string {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		var b strings.Builder
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(text)
		}
		return b.String()
	}
	docs, code := all("../docs/*.md"), all("*.go")+all("../cmd/wanfed/*.go")
	for _, m := range regexp.MustCompile(`\bdesc\("([a-z_]+)"`).FindAllStringSubmatch(code, -1) {
		if !regexp.MustCompile(`wanfed_` + m[1] + `\b`).MatchString(docs) {
			t.Errorf("no doc names wanfed_%s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\bwanfed_([a-z_]+[a-z])\b`).FindAllStringSubmatch(docs, -1) {
		if !strings.Contains(code, `"`+m[1]+`"`) && !strings.Contains(code, `"wanfed_`+m[1]+`"`) && !strings.Contains(code, `"`+strings.TrimPrefix(m[1], "gateway_")+`"`) {
			t.Errorf("the docs name wanfed_%s, which there is not", m[1])
		}
	}
}
