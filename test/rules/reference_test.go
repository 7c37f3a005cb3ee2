// SPDX-License-Identifier: MPL-2.0

package rules

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/server/httpapi"
)

var update = flag.Bool("update", false, "write the reference pages in place of comparing them")

// root is the directory of the repository.
const root = "../.."

// TestReference_IsCurrent compares the pages of docs/reference with the code
// that they describe. "make gen" writes them.
func TestReference_IsCurrent(t *testing.T) {
	for name, generate := range map[string]func(testing.TB) string{
		"settings.md": settingsPage,
		"cli.md":      cliPage,
		"http-api.md": httpPage,
		"metrics.md":  metricsPage,

		"controllers.md": controllersPage,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(root, "docs", "reference", name)
			want := generate(t)
			if *update {
				if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
					t.Fatalf("write %s: %v", path, err)
				}
				return
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != want {
				t.Errorf("%s is not what the code generates (%v); run make gen", path, err)
			}
		})
	}
}

const generatedNote = "This page is generated from the code by `make gen`.\n\n"

// parseFile parses one Go file of the repository.
func parseFile(t testing.TB, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	return f
}

// settingsPage lists the fields with an hcl tag: the settings of the
// configuration files.
func settingsPage(t testing.TB) string {
	var b strings.Builder
	b.WriteString("# Settings\n\n" + generatedNote +
		"A setting of a configuration file (HCL or JSON) has a flag of the same name with\n" +
		"dashes, unless the list names another one. Environment variables take precedence\n" +
		"over files, and flags over both. `wanfed validate FILE` checks a file.\n")
	for _, section := range []struct{ title, file string }{
		{"wanfed server", "serverd/settings.go"},
		{"wanfed gateway", "gatewayd/settings.go"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n", section.title)
		n := 0
		ast.Inspect(parseFile(t, section.file), func(node ast.Node) bool {
			field, ok := node.(*ast.Field)
			if !ok || field.Tag == nil {
				return true
			}
			text, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatalf("%s: tag %s: %v", section.file, field.Tag.Value, err)
			}
			tag := reflect.StructTag(text)
			name, _, _ := strings.Cut(tag.Get("hcl"), ",")
			if name == "" || tag.Get("help") == "" {
				return true
			}
			flagName := tag.Get("flag")
			if flagName == "" {
				flagName = strings.ReplaceAll(name, "_", "-")
			}
			kind := typeName(field.Type)
			reload := ""
			if tag.Get("live") != "" {
				reload = ", reloadable"
			}
			fmt.Fprintf(&b, "- `%s` (%s%s; `--%s`): %s\n", name, kind, reload, flagName,
				strings.ReplaceAll(tag.Get("help"), "`", ""))
			n++
			return true
		})
		if n == 0 {
			t.Fatalf("%s has no settings", section.file)
		}
	}
	return b.String()
}

// typeName returns the type of a setting in the words of HCL.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ArrayType:
		return "list of " + typeName(e.Elt)
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "string"
}

// metricsPage lists the calls of desc in the collectors.
func metricsPage(t testing.TB) string {
	var b strings.Builder
	b.WriteString("# Metrics\n\n" + generatedNote +
		"A server serves its metrics at `/metrics` of its HTTP address, a gateway at\n" +
		"`/metrics` of `admin_addr`, and a sync daemon at `/metrics` of its port, in the\n" +
		"format of Prometheus. [Monitoring](../monitoring.md) has an address for Prometheus.\n" +
		"Names that end in `_total` are counters. Names that begin with `raft_`, `serf_` or\n" +
		"`memberlist_` after `wanfed_` come from these libraries.\n")
	for _, section := range []struct{ title, file, prefix string }{
		{"Server and gateway", "internal/monitor/build.go", "wanfed_"},
		{"Server", "server/status/metrics.go", "wanfed_"},
		{"Requests to a server", "internal/monitor/requests.go", "wanfed_"},
		{"Gateway", "gatewayd/metrics.go", "wanfed_gateway_"},
		{"Sync daemon", "automation/metrics.go", "wanfed_sync_"},
		{"Controllers, with the label controller", "controller/metrics.go", "wanfed_controller_"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n", section.title)
		n := 0
		ast.Inspect(parseFile(t, section.file), func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			if fn, ok := call.Fun.(*ast.Ident); !ok || !slices.Contains([]string{"desc", "counter", "histogram"}, fn.Name) {
				return true
			}
			var args []string
			for _, a := range call.Args {
				if s, ok := constantText(a); ok {
					args = append(args, s)
				}
			}
			if len(args) < 2 {
				return true
			}
			labels := ""
			if len(args) > 2 {
				labels = "{" + strings.Join(args[2:], ", ") + "}"
			}
			fmt.Fprintf(&b, "- `%s%s%s`: %s\n", section.prefix, args[0], labels, args[1])
			n++
			return true
		})
		if n == 0 {
			t.Fatalf("%s has no metrics", section.file)
		}
	}
	return b.String()
}

// constantText returns the value of a string constant, also of a sum of them.
func constantText(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		x, xOK := constantText(e.X)
		y, yOK := constantText(e.Y)
		return x + y, xOK && yOK
	}
	return "", false
}

// httpPage lists the endpoints of a server.
func httpPage(testing.TB) string {
	var b strings.Builder
	b.WriteString("# HTTP API\n\n" + generatedNote +
		"Endpoints below `/v1/` have the names and the JSON of Consul where Consul has them.\n" +
		"[Keys, services and checks](../kv-and-catalog.md) describes consistency, blocking\n" +
		"queries and transactions, [Resources](../resources.md) the endpoints below `/api/`.\n" +
		"`?dc=` selects another datacenter, except for endpoints marked *local*.\n\n")
	for _, e := range httpapi.Endpoints() {
		method := e.Method
		if method == "" {
			method = "any method"
		}
		local := ""
		if e.Local {
			local = " *(local)*"
		}
		fmt.Fprintf(&b, "- `%s %s`%s: %s\n", method, e.Path, local, e.Summary)
	}
	return b.String()
}

// controllersPage shows the controllers of a server and the types that they
// manage and watch.
func controllersPage(t testing.TB) string {
	var b strings.Builder
	b.WriteString("# Controllers of a server\n\n" + generatedNote +
		"[Controllers](../controllers.md) describes placement, queue and metrics. An arrow\n" +
		"points from a type to a controller that it reconciles. A dashed arrow is a watched\n" +
		"type.\n\n```mermaid\ngraph LR\n")
	all := server.Controllers(nil, nil, nil)
	if len(all) == 0 {
		t.Fatal("a server has no controllers")
	}
	for _, c := range all {
		fmt.Fprintf(&b, "  %s --> %s([%s])\n", resource.TypeString(c.Managed), c.Name, c.Name)
		for _, w := range c.Watches {
			fmt.Fprintf(&b, "  %s -.-> %s\n", resource.TypeString(w.Type), c.Name)
		}
	}
	b.WriteString("```\n\n")
	for _, c := range all {
		fmt.Fprintf(&b, "- `%s`: manages `%s`, runs at: %s\n", c.Name, resource.TypeString(c.Managed), c.Placement)
	}
	return b.String()
}

// TestMetrics_InDocsExist: every metric that a page names is in the reference.
func TestMetrics_InDocsExist(t *testing.T) {
	known := metricsPage(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages = %v, %v, want some", pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatalf("read %s: %v", page, err)
		}
		for _, m := range regexp.MustCompile(`\bwanfed_[a-z_]+[a-z]\b`).FindAllString(string(text), -1) {
			if !strings.Contains(known, "`"+m+"`") && !strings.Contains(known, "`"+m+"{") {
				t.Errorf("%s names the metric %s, which does not exist", page, m)
			}
		}
	}
}

var commandLine = regexp.MustCompile(`(?m)^  ([a-z-]+) `)

// cliPage prints the help of each command, in depth-first order.
func cliPage(t testing.TB) string {
	bin := filepath.Join(t.TempDir(), "wanfed")
	build := exec.Command("go", "build", "-o", bin, "./cmd/wanfed")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build = %v: %s", err, out)
	}
	var b strings.Builder
	b.WriteString("# Command line\n\n" + generatedNote)
	b.WriteString("Exit status: 0 success, 1 failure, 2 wrong usage.\n")
	var visit func(words []string)
	visit = func(words []string) {
		cmd := exec.Command(bin, append(words, "--help")...)
		cmd.Env = append(os.Environ(), "COLUMNS=80")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("wanfed %s --help = %v", strings.Join(words, " "), err)
		}
		out = bytes.TrimSpace(out)
		fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", strings.Join(append([]string{"wanfed"}, words...), " "), out)
		for _, list := range strings.Split(string(out), "Commands:\n")[1:] {
			list, _, _ = strings.Cut(list, "\n\n")
			for _, m := range commandLine.FindAllStringSubmatch(list, -1) {
				if m[1] != "help" && m[1] != "completion" {
					visit(append(words[:len(words):len(words)], m[1]))
				}
			}
		}
	}
	visit(nil)
	return b.String()
}
