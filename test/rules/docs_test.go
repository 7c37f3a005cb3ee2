// SPDX-License-Identifier: MPL-2.0

package rules

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// maxCell is the maximum number of characters in a cell of a table. Longer
// facts become paragraphs or lists.
const maxCell = 100

// markdownPages returns the text of each Markdown page of the repository by its
// path. A path is relative to the root.
func markdownPages(t testing.TB) map[string]string {
	t.Helper()
	pages := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "node_modules"):
			return fs.SkipDir
		case filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		pages[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages = %d, %v, want some and nil", len(pages), err)
	}
	return pages
}

var (
	codeSpan = regexp.MustCompile("`[^`\n]*`")
	link     = regexp.MustCompile(`(?s)\]\(([^()\s]+)\)`)
)

// prose returns the lines of a page outside of fenced code.
func prose(page string) []string {
	var lines []string
	code := false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			code = !code
		case !code:
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// anchors returns the anchors that GitHub gives to the headings of a page.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	for _, line := range prose(page) {
		title := strings.TrimLeft(line, "#")
		if len(title) == len(line) || !strings.HasPrefix(title, " ") {
			continue
		}
		anchor := strings.Map(func(c rune) rune {
			switch {
			case c == ' ':
				return '-'
			case unicode.IsLetter(c), unicode.IsDigit(c), c == '-', c == '_':
				return unicode.ToLower(c)
			}
			return -1
		}, strings.TrimSpace(title))
		name := anchor
		for n := 1; all[name]; n++ {
			name = fmt.Sprintf("%s-%d", anchor, n)
		}
		all[name] = true
	}
	return all
}

// brokenLinks returns the relative links of a page whose file or anchor does
// not exist.
func brokenLinks(path, page string, pages map[string]string) []string {
	var broken []string
	text := codeSpan.ReplaceAllString(strings.Join(prose(page), "\n"), "")
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		u, err := url.Parse(m[1])
		if err == nil && u.Scheme != "" {
			continue
		}
		target, fault := path, ""
		switch {
		case err != nil:
			fault = err.Error()
		case u.Path != "":
			target = filepath.ToSlash(filepath.Join(filepath.Dir(path), u.Path))
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				fault = "no such file"
			}
		}
		if fault == "" && u.Fragment != "" && !anchors(pages[target])[u.Fragment] {
			fault = "no such heading"
		}
		if fault != "" {
			broken = append(broken, fmt.Sprintf("%s: %s", m[1], fault))
		}
	}
	return broken
}

func TestDocs_LinksExist(t *testing.T) {
	pages := markdownPages(t)
	for path, page := range pages {
		for _, fault := range brokenLinks(path, page, pages) {
			t.Errorf("%s links to %s", path, fault)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	page := "# The Raft group\n[a](#the-raft-group) [b](#none) `[c](none.md)` [d](https://example.com/none)\n" +
		"```\n[e](none.md)\n# Code\n```\n[f](none.md) [g](../README.md) [h](#code)\n"
	got := brokenLinks("docs/page.md", page, map[string]string{"docs/page.md": page})
	want := []string{"#none: no such heading", "none.md: no such file", "#code: no such heading"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("brokenLinks() = %q, want %q", got, want)
	}
}

// longCells returns the cells of a page's tables that have more than maxCell
// characters.
func longCells(page string) []string {
	var long []string
	for _, line := range prose(page) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for cell := range strings.SplitSeq(strings.ReplaceAll(line, `\|`, "¦"), "|") {
			if cell = strings.TrimSpace(cell); utf8.RuneCountInString(cell) > maxCell {
				long = append(long, cell)
			}
		}
	}
	return long
}

func TestDocs_TableCellsAreShort(t *testing.T) {
	for path, page := range markdownPages(t) {
		for _, cell := range longCells(page) {
			t.Errorf("%s has a table cell of %d characters, want at most %d: %s",
				path, utf8.RuneCountInString(cell), maxCell, cell)
		}
	}
}

func TestLongCells(t *testing.T) {
	fits := strings.Repeat("é", maxCell)
	page := "| " + fits + " | a |\n| b | " + fits + "c |\n```\n| " + fits + "d |\n```\n"
	if got := longCells(page); len(got) != 1 || got[0] != fits+"c" {
		t.Errorf("longCells() = %q, want one cell that ends with c", got)
	}
}

var testRun = regexp.MustCompile(`go test [^` + "`" + `]*?-run\s+'?([\w|]+)'? (\./\S+?)[\s` + "`" + `]`)

// missingTests returns the names in the "go test -run" commands of a page for
// which the package has no test.
func missingTests(page string) (missing []string, found int) {
	for _, m := range testRun.FindAllStringSubmatch(page, -1) {
		var code strings.Builder
		files, _ := filepath.Glob(filepath.Join(root, m[2], "*_test.go"))
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				return []string{err.Error()}, found
			}
			code.Write(b)
		}
		for name := range strings.SplitSeq(m[1], "|") {
			if found++; !strings.Contains(code.String(), "\nfunc "+name) {
				missing = append(missing, name)
			}
		}
	}
	return missing, found
}

func TestDocs_TestsExist(t *testing.T) {
	total := 0
	for path, page := range markdownPages(t) {
		missing, found := missingTests(page)
		total += found
		for _, name := range missing {
			t.Errorf("%s names the test %s, which does not exist", path, name)
		}
	}
	if total == 0 {
		t.Error("pages name no test, want some")
	}
}

func TestMissingTests(t *testing.T) {
	page := "`A=1 go test -v -run\n'TestMissing|TestAbsent' ./test/rules`, `go test ./x` and -run TestNone ./test/rules"
	if got, found := missingTests(page); len(got) != 1 || got[0] != "TestAbsent" || found != 2 {
		t.Errorf("missingTests() = %q of %d, want TestAbsent of 2", got, found)
	}
}

var (
	testName = regexp.MustCompile(`\bTest[A-Z][A-Za-z0-9_]*`)
	testFunc = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9_]*)\(`)
)

// TestDocs_NamedTestsExist: each test that a page names, also outside of a
// command, exists in some package. A page may name several tests by the beginning
// of their names, as -run does.
func TestDocs_NamedTestsExist(t *testing.T) {
	var tests []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllStringSubmatch(string(text), -1) {
			tests = append(tests, m[1])
		}
		return err
	})
	if err != nil || len(tests) == 0 {
		t.Fatalf("tests = %d, %v, want some and nil", len(tests), err)
	}
	for path, page := range markdownPages(t) {
		for _, name := range testName.FindAllString(page, -1) {
			if !slices.ContainsFunc(tests, func(full string) bool { return strings.HasPrefix(full, name) }) {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	}
}
