// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Bounds of files, in bytes: far above any that somebody wrote, far below what a machine has in memory. A name that was given by
// mistake may be that of a device without an end. To read HCL takes up to 500 times its bytes in memory.
const (
	maxSettings  = 1 << 20
	maxRouteFile = 16 << 20 // a hundred thousand routes
	maxPEM       = 4 << 20
	maxResources = 256 << 20 // of JSON
	maxHCL       = 16 << 20  // of resources in HCL
)

const (
	// maxNesting bounds brackets within brackets, and operators in a row: the parser of HCL calls itself for each, and a stack that
	// is full ends the process.
	maxNesting = 100
	// routeHead is within how many bytes of a file of more than maxSettings the first route has to begin.
	routeHead = 64 << 10
)

// readBounded reads the file at path, which may be a pipe, if it has no more than limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAtMost(f, path, limit)
}

// openFile opens the file at path, which may be a pipe, for reading. What is usually wrong with one is said in words for people.
func openFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &fileFault{path + " does not exist; check the path", err}
	case errors.Is(err, fs.ErrPermission):
		return nil, &fileFault{path + " may not be read by this user; change its owner or mode", err}
	case err != nil:
		return nil, err
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, &fileFault{path + " is a folder: name a file", syscall.EISDIR}
	}
	return f, nil
}

// fileFault is an error of opening a file with a clearer text.
type fileFault struct {
	text  string
	cause error
}

func (f *fileFault) Error() string { return f.text }
func (f *fileFault) Unwrap() error { return f.cause }

// readAtMost reads all of r, which errors call name, if that is no more than limit bytes.
func readAtMost(r io.Reader, name string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes: is it the right file?", name, limit)
	}
	return b, err
}

// checkHCL refuses what would cost the parser of HCL, or of its JSON form, minutes or its life.
func checkHCL(path string, src []byte) error {
	depth := hclDepth
	if filepath.Ext(path) == ".json" {
		depth = jsonDepth
	}
	if line, ok := depth(src); !ok {
		return tooDeep(path, line)
	}
	return nil
}

func tooDeep(path string, line int) error {
	return fmt.Errorf("%s:%d: more than %d brackets or operators within each other: is it the right file?", path, line, maxNesting)
}

// checkLong refuses a file that is too long for settings and does not begin as one of routes does.
func checkLong(path string, src []byte) error {
	if len(src) <= maxSettings {
		return nil
	}
	head := src[:routeHead]
	if filepath.Ext(path) == ".json" && bytes.Contains(head, []byte(`"route"`)) {
		return nil
	}
	tokens, _ := hclsyntax.LexConfig(head[:bytes.LastIndexByte(head, '\n')+1], path, hcl.InitialPos)
	for i, t := range tokens[:max(0, len(tokens)-1)] {
		if t.Type == hclsyntax.TokenIdent && string(t.Bytes) == "route" && tokens[i+1].Type == hclsyntax.TokenOQuote {
			return nil
		}
	}
	return fmt.Errorf("%s has more than %d bytes, and no route in the first %d: is it the right file?", path, maxSettings, routeHead)
}

// depthHead is how many bytes of a file are looked at by themselves first: what nests too deep mostly does so at once, and to take
// all of it apart takes a second for each megabyte.
const depthHead = 4 << 10

// hclDepth says whether src nests no deeper than maxNesting, or in which line it does.
func hclDepth(src []byte) (line int, ok bool) {
	// A comment that is cut off would be taken for no comment.
	if len(src) > depthHead && !bytes.Contains(src[:depthHead], []byte("/*")) {
		if line, ok := tokenDepth(src[:depthHead]); !ok {
			return line, false
		}
	}
	return tokenDepth(src)
}

func tokenDepth(src []byte) (line int, ok bool) {
	var open []hclsyntax.TokenType
	operators := 0 // since the expression began
	tokens, _ := hclsyntax.LexConfig(src, "", hcl.InitialPos)
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc,
			hclsyntax.TokenTemplateInterp:
			open = append(open, t.Type)
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc,
			hclsyntax.TokenTemplateSeqEnd:
			open = open[:max(0, len(open)-1)]
		case hclsyntax.TokenTemplateControl:
			open = append(open, t.Type)
			operators++ // what it begins ends with another one
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion:
			operators++
		case hclsyntax.TokenComma:
			operators = 0
		case hclsyntax.TokenNewline:
			if len(open) == 0 || open[len(open)-1] == hclsyntax.TokenOBrace {
				operators = 0
			}
		}
		if len(open)+operators > maxNesting {
			return t.Range.Start.Line, false
		}
	}
	return 0, true
}

// jsonDepth is hclDepth for JSON.
func jsonDepth(src []byte) (line int, ok bool) {
	depth, text, line := 0, false, 1
	for i := 0; i < len(src); i++ {
		switch b := src[i]; {
		case b == '\n':
			line++
			text = false // whatever it was
		case text && b == '\\':
			i++
		case b == '"':
			text = !text
		case text:
		case b == '{' || b == '[':
			depth++
		case b == '}' || b == ']':
			depth--
		}
		if depth > maxNesting {
			return line, false
		}
	}
	return 0, true
}
