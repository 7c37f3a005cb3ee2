// SPDX-License-Identifier: MPL-2.0

package resourcefile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api"
)

// resolveType resolves the short name node and full names of types.
func resolveType(text string) (api.ResourceTypeName, error) {
	if strings.EqualFold(text, "node") {
		text = "catalog/v1/Node"
	}
	return api.ParseResourceType(text)
}

// parsed writes text to a file, reads the file and returns its resources as
// JSON.
func parsed(t *testing.T, name, text string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := Read(path, nil)
	if err != nil {
		return "", err
	}
	var out []api.Resource
	for _, d := range all {
		r, err := d.Resource(resolveType)
		if err != nil {
			return "", err
		}
		out = append(out, r)
	}
	body, err := json.Marshal(out)
	return string(body), err
}

const (
	idA  = `"id":{"name":"a","type":{"group":"catalog","group_version":"v1","kind":"Node"}}`
	full = `[{"id":{"uid":"u","name":"a","type":{"group":"catalog","group_version":"v1","kind":"Node"},` +
		`"tenancy":{"partition":"p","namespace":"n"}},` +
		`"owner":{"name":"o","type":{"group":"catalog","group_version":"v1","kind":"Node"}},"version":"12",` +
		`"metadata":{"k":"v"},` +
		`"data":{"flag":true,"list":[1,2.5],"name":"x","none":null,"tagged":{"lan":{"port":1},"wan":{"port":2}},` +
		`"two":[{"a":1},{"b":"2026-01-02"}]}}]`
)

func TestRead(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"a.hcl", "type = \"node\"\nname = \"a\"\ndata {}", `[{` + idA + `,"data":{}}]`},
		{"full.hcl", `
// everything
type      = "node"
name      = "a"
partition = "p"
namespace = "n"
uid       = "u"
version   = 12
owner {
  type = "node"
  name = "o"
}
metadata = { k = "v" }
data {
  name = "x"
  flag = true
  list = [1, 2.5]
  none = null
  tagged "lan" { port = 1 }
  tagged "wan" { port = 2 }
  two { a = 1 }
  two { b = "2026-01-02" }
}`, full},
		{"full.yaml", `
type: node
name: a
partition: p
namespace: n
uid: u
version: 12
owner: {type: node, name: o}
metadata: {k: v}
data:
  name: x
  flag: true
  list: [1, 2.5]
  none: null
  tagged: {lan: {port: 1}, wan: {port: 2}}
  two:
  - a: 1
  - b: 2026-01-02
`, full},
		{"whole.json", full, full}, // the response of a server
		{"list.json", `{"resources":` + full + `}`, full},
		{"guessed-hcl",
			"# a comment\n\nresource \"node\" \"a\" {\n data = {}\n}\nresource \"node\" \"a\" {\n data = {}\n}",
			`[{` + idA + `,"data":{}},{` + idA + `,"data":{}}]`},
		{"guessed-yaml", "# a comment\ntype: node\nname: a\ndata: {}\n---\n---\ntype: node\nname: a\ndata: {}\n",
			`[{` + idA + `,"data":{}},{` + idA + `,"data":{}}]`},
		{"guessed-json", ` {"type":"node","name":"a","data":{}} {"type":"node","name":"a","data":{}}`,
			`[{` + idA + `,"data":{}},{` + idA + `,"data":{}}]`},
		{"version.json", `{"type":"node","name":"a","version":7,"data":{}}`, `[{` + idA + `,"version":"7","data":{}}]`},
	} {
		got, err := parsed(t, tt.name, tt.text)
		if err != nil {
			t.Errorf("Read(%s) = %v, want nil", tt.name, err)
			continue
		}
		var a, b any
		if json.Unmarshal([]byte(got), &a) != nil || json.Unmarshal([]byte(tt.want), &b) != nil || !cmp.Equal(a, b) {
			t.Errorf("Read(%s) = %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestRead_Errors(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty.hcl", "", "has no resource"},
		{"empty.yaml", "---\n", "has no resource"},
		{"a.hcl", "type = ", "a.hcl:1,8: Missing expression"},
		{"a.hcl", `type = "node"` + "\n" + `name = upper("a")`, "Function calls not allowed"},
		{"a.hcl", `type = "node"` + "\n" + `nam = "a"`, `unknown field "nam"`},
		{"a.hcl", `name = "a"` + "\nresource \"node\" \"b\" {}", "put each resource into a block"},
		{"a.hcl", "\n" + `resource "node" {}`, "a.hcl:2: a resource block needs two labels"},
		{"a.hcl", `resource "node" "a" { name = "b" }`, "name is set in the labels of the block as well"},
		{"a.hcl", "type = \"node\"\ndata { a = 1 }\ndata = {}", "data is both an attribute and a block"},
		{"a.hcl", "data {\n  a = 1\n  a \"x\" {}\n}",
			"a is an attribute or a block without labels, and a block with labels"},
		{"a.json", "\n\n{\"type\":", "a.json:3: unexpected EOF"},
		{"a.json", `[{"type":"node","name":"a","data":{}},{"nme":1}]`, `a.json:1, element 2: unknown field "nme"`},
		{"a.json", `{"type":"node","name":7}`, "a.json:1: name must not be a number"},
		{"a.json", `{"type":"node","name":"a"}`, "data is required"},
		{"a.json", `{"type":"node","data":{}}`, "type and name are required"},
		{"a.json", `{"name":"a","id":{"name":"a","type":"node"},"data":{}}`, "id and a second type"},
		{"a.json", `{"type":"node","name":"a","owner":{"name":"b"},"data":{}}`, "owner: type and name are required"},
		{"a.yaml", "a: b: c", "a.yaml: yaml: "},
		{"a.yaml", "type: node\nname: a\nname: b\ndata: {}", "already defined"},
		{"a.yaml", "type: node\nname: a\ndata: {x: .inf}", "a value has no form in JSON"},
		{"a.yaml", "just text", "a resource must not be a string"},
	} {
		if _, err := parsed(t, tt.name, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Read(%q) = %v, want an error with %q", tt.text, err, tt.want)
		}
	}
	if _, err := Read("none.hcl", nil); err == nil || !strings.Contains(err.Error(), "none.hcl") {
		t.Errorf("Read(none.hcl) = %v, want an error with the file name", err)
	}
}
