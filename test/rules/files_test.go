// SPDX-License-Identifier: MPL-2.0

package rules

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxLines is the largest number of lines of a file. Most files are far
// shorter.
const maxLines = 600

// licences are the first lines of files, by extension.
var licences = map[string]string{
	".go": licence, ".js": licence, ".jsx": licence, ".mjs": licence, ".css": "/* SPDX-License-Identifier: MPL-2.0 */\n",
}

const licence = "// SPDX-License-Identifier: MPL-2.0\n"

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`) // go help generate

// clusterCallers matches the files in which .ci/clustertests.go finds calls of
// testutil.Cluster.
var clusterCallers = regexp.MustCompile(`_test\.go$|^test/lab/|^internal/testutil/|^\.ci/`)

// bareBubble matches a bubble that the race detector may end.
var bareBubble = regexp.MustCompile(`synctest\.Test\(`)

func TestFiles(t *testing.T) {
	root := os.DirFS("../..")
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "node_modules"):
			return fs.SkipDir
		case d.IsDir() && path == "server/ui/dist": // built from ui
			return fs.SkipDir
		case d.IsDir() || licences[filepath.Ext(path)] == "":
			return nil
		}
		b, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		if generated.Match(b) {
			return nil
		}
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, want at most %d: split it by idea", path, n, maxLines)
		}
		if bytes.Contains(b, []byte("testutil.Cluster(")) && !clusterCallers.MatchString(path) {
			t.Errorf("%s calls testutil.Cluster: only tests and package test/lab may", path)
		}
		if strings.HasSuffix(path, "_test.go") && bareBubble.Match(b) {
			t.Errorf("%s calls synctest.Test: call testutil.Bubble", path)
		}
		if licence := licences[filepath.Ext(path)]; !bytes.HasPrefix(b, []byte(licence)) {
			t.Errorf("%s does not begin with the licence line %q", path, licence)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
