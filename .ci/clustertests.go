// SPDX-License-Identifier: MPL-2.0

//go:build ignore

// Command clustertests prints a regular expression of the cluster tests: those
// that call testutil.Cluster, directly or through functions of their package or
// of package test/lab. The expression also has the tests that depend on the
// user, because CI runs "make test" without root. The command runs in the root
// directory of the repository.
//
//	go run .ci/clustertests.go DIR...
//
// A function that another one only names counts as called, so that the
// expression has too many tests rather than too few.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	marks := map[string]bool{"testutil.Cluster": true, "os.Geteuid": true, "os.Getuid": true}
	for name := range leading("test/lab/*.go", marks) {
		marks["lab."+name] = true
	}
	var tests []string
	for _, dir := range os.Args[1:] {
		for name := range leading(filepath.Join(dir, "*_test.go"), marks) {
			if strings.HasPrefix(name, "Test") && name != "TestMain" {
				tests = append(tests, name)
			}
		}
	}
	slices.Sort(tests)
	fmt.Printf("^(%s)$\n", strings.Join(slices.Compact(tests), "|"))
}

// leading returns the functions, methods and variables of files that lead to one
// of marks, which are names as package.Name.
func leading(files string, marks map[string]bool) map[string]bool {
	paths, err := filepath.Glob(files)
	if err != nil {
		log.Fatal(err)
	}
	named := map[string][]string{} // by declaration
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			log.Fatal(err)
		}
		for _, decl := range f.Decls {
			for _, owner := range declared(decl) {
				named[owner] = append(named[owner], names(decl)...)
			}
		}
	}
	leads := map[string]bool{}
	for grown := true; grown; {
		grown = false
		for owner, all := range named {
			if !leads[owner] && slices.ContainsFunc(all, func(n string) bool { return leads[n] || marks[n] }) {
				leads[owner], grown = true, true
			}
		}
	}
	return leads
}

// declared returns the functions, methods and variables that decl declares.
func declared(decl ast.Decl) (out []string) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		out = append(out, d.Name.Name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok {
				for _, n := range v.Names {
					out = append(out, n.Name)
				}
			}
		}
	}
	return out
}

// names returns the names in decl, and the selectors as package.Name.
func names(decl ast.Decl) (out []string) {
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			out = append(out, n.Name)
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				out = append(out, x.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return out
}
