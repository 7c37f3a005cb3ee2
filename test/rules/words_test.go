// SPDX-License-Identifier: MPL-2.0

package rules

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// badText matches words that must not appear in comments, strings and pages.
// Programs report, request and return; they do not tell, ask or say. The list
// only grows.
var badText = regexp.MustCompile(`(?i)(?:there )?\b(` + strings.Join([]string{
	`nobody`, `somebody`, `whoever`, `anew`, `for ever`, `meanwhile`, `in vain`, `the own`, `beside`,
	`tells?`, `told`, `telling`, `asks?`, `asked`, `asking`, `askers?`, `says?`, `said`, `saying`, `hears?`, `heard`,
	`forgets?`, `forgot(?:ten)?`, `doubt(?:s|ed|ful)?`, `patien(?:ce|t|tly)`, `strangers?`, `farewells?`,
	`g[ai]v(?:e|es|en|ing) (?:it |them |up )?back`, `lets? (?:it |them )?go`, `goes away`, `go away`, `under way`,
	`such as have`, `(?:is|are|was|were) no [a-km-z][a-z]*`, `hops?`, `folders?`, `graves?`, `bury`, `buried`,
	`exhumed?`,
	`deeds?`, `handovers?`, `hand(?:s|ed|ing)? over`, `mend(?:s|ed|ing)?`, `riddles?`,
}, "|") + `)\b`)

// headless matches a sentence that begins with "Who ..." and is not a question.
var headless = regexp.MustCompile(`(?:^|[.:] )Whom? [^?]*$`)

// badWords holds the words that must not be part of an identifier or a file
// name.
var badWords = map[string]bool{}

func init() {
	for w := range strings.FieldsSeq(
		`nobody somebody whoever anew meanwhile beside tell tells told ask asks asked asking asker
		askers say says said hear hears heard forget forgets forgotten doubt doubts doubted patience stranger strangers farewell
		hop hops folder folders grave graves bury buried exhume deed deeds handover riddle crew bell mail primacy hinter hinted
		vouch vouched shelf lent`) {
		badWords[w] = true
	}
}

// allowed has the places where a listed word is right, by file, with the
// reason.
var allowed = map[string]string{
	"test/rules/words_test.go":              "has the list",
	"replication/followerstream.go":         "FollowAsk is a message on the wire",
	"replication/sourcestream.go":           "FollowAsk is a message on the wire",
	"replication/fuzz_test.go":              "FollowAsk is a message on the wire",
	"replication/helper_test.go":            "FollowAsk is a message on the wire",
	"replication/resume_test.go":            "FollowAsk is a message on the wire",
	"api/pb/replication.proto":              "FollowAsk is a message on the wire",
	"bench/gatewaybench/load/figures.go":    "rows keep their names, so that series compare",
	"bench/gatewaybench/rows_linux.go":      "rows keep their names, so that series compare",
	"bench/gatewaybench/main_linux.go":      "rows and flags keep their names",
	"bench/gatewaybench/main_linux_test.go": "rows and flags keep their names",
	"docs/benchmarks.md":                    "names a row of gatewaybench",
}

// identWords splits an identifier or a file name into lower-case words.
func identWords(id string) []string {
	var out []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			out = append(out, strings.ToLower(string(word)))
			word = nil
		}
	}
	rs := []rune(id)
	for i, r := range rs {
		switch {
		case !unicode.IsLetter(r):
			flush()
			continue
		case unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1])):
			flush()
		}
		word = append(word, r)
	}
	flush()
	return out
}

func badIdent(id string) bool {
	for _, w := range identWords(id) {
		if badWords[w] {
			return true
		}
	}
	return false
}

// badPhrases returns the words of a text that must not appear.
func badPhrases(text string) []string {
	var out []string
	for _, w := range badText.FindAllString(text, -1) {
		l := strings.ToLower(w)
		if strings.HasPrefix(l, "there ") && strings.Contains(l, " no ") || strings.HasSuffix(l, " no more") {
			continue // "there is no X" is right, and so is "is no more than"
		}
		out = append(out, w)
	}
	if m := headless.FindString(text); m != "" {
		out = append(out, m[:min(len(m), 30)])
	}
	return out
}

func TestBadPhrases(t *testing.T) {
	for text, want := range map[string]int{
		"The server tells the client": 1, "this is no server": 1, "there is no server": 0, "Who calls f": 1,
		"it is no longer there": 0, "hand over and mend": 2, "a message": 0,
	} {
		if got := badPhrases(text); len(got) != want {
			t.Errorf("badPhrases(%q) = %q, want %d", text, got, want)
		}
	}
	for id, want := range map[string]bool{"askPeer": true, "TestToldTwice": true, "task": false, "hopStatus": true,
		"HTTPMail": true} {
		if got := badIdent(id); got != want {
			t.Errorf("badIdent(%q) = %v, want %v", id, got, want)
		}
	}
}

// TestWords scans comments, strings, identifiers, pages and file names.
func TestWords(t *testing.T) {
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == "bin" || d.Name() == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasPrefix(name, "server/ui/dist/") { // built from ui
			return nil
		}
		if allowed[name] != "" || strings.HasSuffix(name, ".pb.go") {
			return nil
		}
		if base := path.Base(name); badIdent(strings.TrimSuffix(base, path.Ext(base))) {
			t.Errorf("%s: the file name has a word of the list", name)
		}
		switch path.Ext(name) {
		case ".go", ".md", ".proto", ".js", ".jsx", ".mjs", ".css", ".html":
		default:
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if path.Ext(name) == ".go" {
			scanGo(t, name, src)
			return nil
		}
		for i, line := range strings.Split(string(src), "\n") {
			if w := badPhrases(line); w != nil {
				t.Errorf("%s:%d: %q is in the list of words to avoid", name, i+1, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk %s: %v", root, err)
	}
}

func scanGo(t *testing.T, name string, src []byte) {
	fset := token.NewFileSet()
	file := fset.AddFile(name, -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return
		case tok == token.COMMENT && strings.HasPrefix(lit, "//go:"):
		case tok == token.COMMENT, tok == token.STRING:
			if w := badPhrases(strings.TrimPrefix(strings.TrimPrefix(lit, "//"), " ")); w != nil {
				t.Errorf("%s: %q is in the list of words to avoid", fset.Position(pos), w)
			}
		case tok == token.IDENT && badIdent(lit):
			t.Errorf("%s: identifier %s has a word to avoid", fset.Position(pos), lit)
		}
	}
}
