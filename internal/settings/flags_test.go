// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

type sampleSettings struct {
	DataDir string   `hcl:"data_dir,optional" help:"directory"`
	Port    int      `hcl:"port,optional" help:"port"`
	Quiet   bool     `hcl:"quiet,optional" help:"quiet"`
	Join    []string `hcl:"join,optional" help:"addresses"`
	note    string
}

func load(t testing.TB, file string, env map[string]string, args ...string) (sampleSettings, error) {
	t.Helper()
	s := sampleSettings{DataDir: "/default", note: "kept"}
	flags := pflag.NewFlagSet("sample", pflag.ContinueOnError)
	AddFlags(flags, &s)
	if file != "" {
		path := filepath.Join(t.TempDir(), "sample.hcl")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config-file", path)
	}
	for k, v := range env {
		t.(*testing.T).Setenv(k, v)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := Load(flags, io.Discard, &s)
	return s, err
}

func TestLoad_Order(t *testing.T) {
	file := "data_dir = \"/file\"\nport = 1\njoin = [\"a\", \"b\"]\n"
	env := map[string]string{"WANFED_PORT": "2", "WANFED_JOIN": "c, d", "WANFED_DATA_DIR": ""}
	tests := []struct {
		name string
		file string
		env  map[string]string
		args []string
		want sampleSettings
	}{
		{"defaults", "", nil, nil, sampleSettings{DataDir: "/default"}},
		{"file", file, nil, nil, sampleSettings{DataDir: "/file", Port: 1, Join: []string{"a", "b"}}},
		{"environment overrides file", file, env, nil,
			sampleSettings{DataDir: "/file", Port: 2, Join: []string{"c", "d"}}},
		{"flags override environment", file, env, []string{"--port=3", "--join=e", "--join=f,g", "--quiet"},
			sampleSettings{DataDir: "/file", Port: 3, Quiet: true, Join: []string{"e", "f", "g"}}},
		{"flag with the default", file, nil, []string{"--data-dir=/default"},
			sampleSettings{DataDir: "/default", Port: 1, Join: []string{"a", "b"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := load(t, tt.file, tt.env, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.note = "kept"
			if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(sampleSettings{})); d != "" {
				t.Errorf("Load(): (-want +got)\n%s", d)
			}
		})
	}
}

func TestLoad_AllErrors(t *testing.T) {
	_, err := load(t, "prot = 1\nquiet = \"maybe\"\n", map[string]string{"WANFED_PORT": "many"})
	if n := len(Split(err)); n != 3 {
		t.Fatalf("errors = %d, want 3: %v", n, err)
	}
}
