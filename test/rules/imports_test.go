// SPDX-License-Identifier: MPL-2.0

package rules

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

// layers lists the packages of this module from top to bottom. A package
// imports only packages of lower layers. A new package needs a place here.
var layers = [][]string{
	{"cmd/wanfed", "examples", "examples/controller", "examples/memberlist", "examples/serf"},
	{"diagnose"},
	{"serverd"},
	{"demo", "server"},
	{"server/status"},
	{"server/remote"},
	{"server/raftgroup"},
	{"server/checks", "server/httpapi", "server/keyring", "server/operator", "server/snapshot"},
	{"server/ui"},
	{"gatewayd"},
	{"server/rpc"},
	{"server/audit", "server/limit"},
	{"replication"},
	{"federation"},
	{"dcrpc"},
	{"gateway/xds"},
	{"gateway/proxycfg"},
	{"gateway"},
	{"gateway/internal/reactor"},
	{"gateway/internal/upstream"},
	{"gateway/internal/sockets", "gateway/internal/tlsrecord"},
	{"syncd"},
	{"automation"},
	{"controller"},
	{"automation/ctsapi"},
	{"automation/config"},
	{"automation/state"},
	{"automation/exec", "automation/terraform"},
	{"automation/process"},
	{"automation/view"},
	{"automation/driver"},
	{"automation/input"},
	{"automation/task"},
	{"kv"},
	{"session"},
	{"catalog", "document", "enroll", "lease", "revocation", "trust"},
	{"policy"},
	{"resource/raftstore"},
	{"resource/raftstore/raftlog"},
	{"resource/memory"},
	{"gossip"},
	{"resource/resourcehttp"},
	{"resource"},
	{"wanfed"},
	{"api/apply", "api/consul", "api/filter", "api/lock"},
	{"api"},
	{"tlsutil"},
	{"api/pb"},
}

// kits are packages for tests. They may import every package. Only tests and
// other kits may import them.
var kits = []string{"test", "test/rules", "test/lab", "test/lab/wan", "resource/resourcetest", "tlsutil/tlstest",
	"controller/controllertest", "gossip/gossiptest", "gateway/proxycfg/consultest"}

// internal is the directory of packages that every other package may import.
// They import only each other and what internalMay lists.
const internal = "internal/"

var internalMay = map[string][]string{
	"internal/resourcefile": {"api"},
	"internal/subprocess":   {"tlsutil"},
	"internal/monitor":      {"tlsutil"},
	"internal/profile":      {"tlsutil"},
}

// The packages in alone are usable without a server. They must not depend on
// the packages in forbidden, directly or indirectly.
var (
	alone     = []string{"wanfed", "tlsutil", "gateway", "gateway/proxycfg", "gateway/xds"}
	forbidden = []string{"github.com/hashicorp/raft", "github.com/hashicorp/serf", module + "/resource"}
)

type goPackage struct {
	ImportPath, Dir string
	Imports, Deps   []string
	GoFiles         []string
}

// listPackages returns all packages of this module, including those that do not
// compile.
func listPackages(t testing.TB) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Imports,Deps,GoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list failed: %s", exit.Stderr)
		}
		t.Fatalf("go list = %v, want nil", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("decode the output of go list: %v", err)
		}
		all = append(all, p)
	}
}

// relative returns the directory of a package of this module, from its import
// path. It returns false for other packages.
func relative(importPath string) (string, bool) { return strings.CutPrefix(importPath, module+"/") }

// layerOf returns the index of the layer of a package, or -1.
func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

// importFault returns why package from must not import package to. It returns
// "" if the import is permitted.
func importFault(from, to string) string {
	switch {
	case slices.Contains(kits, from), strings.HasPrefix(to, internal):
		return ""
	case slices.Contains(kits, to):
		return "a package for tests"
	case strings.HasPrefix(from, internal):
		if !slices.Contains(internalMay[from], to) {
			return "not a package below internal"
		}
	case layerOf(to) <= layerOf(from):
		return "not a package of a lower layer"
	}
	return ""
}

func TestImports_PointDownward(t *testing.T) {
	for _, p := range listPackages(t) {
		from, ok := relative(p.ImportPath)
		if !ok {
			continue
		}
		if layerOf(from) < 0 && !slices.Contains(kits, from) && !strings.HasPrefix(from, internal) {
			t.Errorf("package %s has no layer: add it to the table of this test", from)
			continue
		}
		for _, i := range p.Imports {
			to, ok := relative(i)
			if !ok {
				continue
			}
			if fault := importFault(from, to); fault != "" {
				t.Errorf("%s imports %s: %s", from, to, fault)
			}
		}
	}
}

func TestImportFault(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     bool // permitted
	}{
		{"server", "federation", true},
		{"federation", "server", false},
		{"resource/memory", "resource/raftstore", false},
		{"demo", "server", false},
		{"wanfed", "internal/backoff", true},
		{"internal/subprocess", "tlsutil", true},
		{"internal/subprocess", "server", false},
		{"server", "test/lab", false},
		{"test/lab", "server", true},
	} {
		if fault := importFault(test.from, test.to); (fault == "") != test.want {
			t.Errorf("importFault(%s, %s) = %q, want permitted: %v", test.from, test.to, fault, test.want)
		}
	}
}

func TestImports_StandalonePackages(t *testing.T) {
	for _, p := range listPackages(t) {
		name, _ := relative(p.ImportPath)
		if !slices.Contains(alone, name) {
			continue
		}
		for _, dep := range p.Deps {
			for _, f := range forbidden {
				if dep == f || strings.HasPrefix(dep, f+"/") {
					t.Errorf("%s depends on %s: find the import with go list -deps", name, dep)
				}
			}
		}
	}
}

// The linker removes the methods that nothing calls only while nothing looks up
// methods by their names. Packages that execute templates do.
func TestImports_NoTemplates(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, f := range []string{"text/template", "html/template"} {
			if slices.Contains(p.Imports, f) {
				t.Errorf("%s imports %s: this makes the program 10 MB larger", p.ImportPath, f)
			}
		}
	}
}

func TestPackages_HaveDoc(t *testing.T) {
	for _, p := range listPackages(t) {
		if !slices.Contains(p.GoFiles, "doc.go") {
			t.Errorf("package %s has no doc.go", path.Clean(strings.TrimPrefix(p.ImportPath, module+"/")))
		}
	}
}
