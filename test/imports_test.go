// SPDX-License-Identifier: MPL-2.0

package test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/wanfed/wanfed"

// layers is who may import whom: a package imports only packages of layers below its own. A new package needs a place here.
var layers = [][]string{
	{"cmd/wanfed", "examples", "examples/memberlist", "examples/serf"},
	{"demo", "server"},
	{"server/httpapi", "server/keyring", "server/operator"},
	{"server/rpc"},
	{"server/limit"},
	{"replication"},
	{"federation"},
	{"dcrpc"},
	{"gateway/proxycfg"},
	{"gateway"},
	{"catalog", "document", "kv"},
	{"resource/raftstore"},
	{"resource/raftstore/raftlog"},
	{"resource/memory"},
	{"gossip"},
	{"resource/resourcehttp"},
	{"resource"},
	{"wanfed"},
	{"api"},
	{"tlsutil"},
	{"api/pb"},
}

// kits help tests. They import what they like; only tests and each other import them.
var kits = []string{"test", "test/lab", "test/lab/wan", "resource/resourcetest", "tlsutil/tlstest"}

// internal is the folder of packages that every other may import. They import only each other and what is said here.
const internal = "internal/"

var internalMay = map[string][]string{"internal/subprocess": {"tlsutil"}}

// alone are packages that other programs import, or that must stay small: none of these may come with them, directly or not.
var (
	alone     = []string{"wanfed", "tlsutil", "gateway"}
	forbidden = []string{"github.com/hashicorp/raft", "github.com/hashicorp/serf", module + "/resource"}
)

type goPackage struct {
	ImportPath, Dir string
	Imports, Deps   []string
	GoFiles         []string
}

// listPackages returns all packages of this module, also those that do not build: that is for others to say.
func listPackages(t testing.TB) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Imports,Deps,GoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// ours shortens an import path of this module to its folder.
func ours(importPath string) (string, bool) { return strings.CutPrefix(importPath, module+"/") }

func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

// importFault says why package from must not import package to; empty: it may.
func importFault(from, to string) string {
	switch {
	case slices.Contains(kits, from), strings.HasPrefix(to, internal):
		return ""
	case slices.Contains(kits, to):
		return "which is for tests"
	case strings.HasPrefix(from, internal):
		if !slices.Contains(internalMay[from], to) {
			return "but every package may import the former"
		}
	case layerOf(to) <= layerOf(from):
		return "which is not in a layer below"
	}
	return ""
}

func TestImportsPointDownward(t *testing.T) {
	for _, p := range listPackages(t) {
		from, ok := ours(p.ImportPath)
		if !ok {
			continue
		}
		if layerOf(from) < 0 && !slices.Contains(kits, from) && !strings.HasPrefix(from, internal) {
			t.Errorf("package %s has no place in the table of this test", from)
			continue
		}
		for _, i := range p.Imports {
			to, ok := ours(i)
			if !ok {
				continue
			}
			if fault := importFault(from, to); fault != "" {
				t.Errorf("%s imports %s, %s", from, to, fault)
			}
		}
	}
}

func TestImportFault(t *testing.T) {
	for _, test := range []struct {
		from, to string
		allowed  bool
	}{
		{"server", "federation", true},
		{"federation", "server", false},
		{"resource/memory", "resource/raftstore", false},
		{"demo", "server", false},
		{"wanfed", "internal/slogadapter", true},
		{"internal/subprocess", "tlsutil", true},
		{"internal/subprocess", "server", false},
		{"server", "test/lab", false},
		{"test/lab", "server", true},
	} {
		if fault := importFault(test.from, test.to); (fault == "") != test.allowed {
			t.Errorf("importFault(%s, %s) = %q", test.from, test.to, fault)
		}
	}
}

func TestWhatStandsAlone(t *testing.T) {
	for _, p := range listPackages(t) {
		name, _ := ours(p.ImportPath)
		if !slices.Contains(alone, name) {
			continue
		}
		for _, dep := range p.Deps {
			for _, f := range forbidden {
				if dep == f || strings.HasPrefix(dep, f+"/") {
					t.Errorf("%s depends on %s: see go mod why, or go list -deps", name, dep)
				}
			}
		}
	}
}

func TestEveryPackageHasDoc(t *testing.T) {
	for _, p := range listPackages(t) {
		if !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("package %s has no doc.go", path.Clean(strings.TrimPrefix(p.ImportPath, module+"/")))
		}
	}
}
