// SPDX-License-Identifier: MPL-2.0

package status

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMetrics_Documented: the documentation names each metric, and no other.
func TestMetrics_Documented(t *testing.T) {
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
	docs, code := all("../../docs/*.md"), all("*.go")+all("../../cmd/wanfed/*.go")
	for _, m := range regexp.MustCompile(`\bdesc\("([a-z_]+)"`).FindAllStringSubmatch(code, -1) {
		if !regexp.MustCompile(`wanfed_` + m[1] + `\b`).MatchString(docs) {
			t.Errorf("metric wanfed_%s is not in the documentation", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\bwanfed_([a-z_]+[a-z])\b`).FindAllStringSubmatch(docs, -1) {
		if !strings.Contains(code, `"`+m[1]+`"`) && !strings.Contains(code, `"wanfed_`+m[1]+`"`) && !strings.Contains(code, `"`+strings.TrimPrefix(m[1], "gateway_")+`"`) {
			t.Errorf("the documentation names wanfed_%s, which is not a metric", m[1])
		}
	}
}
