// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/settings"
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
	var err error
	cmd := &cobra.Command{
		Use: "sample", SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err = loadSettings(cmd, &s)
			return nil
		},
	}
	addSettings(cmd, &s)
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
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	return s, err
}

func TestLoadSettings_Order(t *testing.T) {
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
				t.Errorf("loadSettings(): (-want +got)\n%s", d)
			}
		})
	}
}

func TestLoadSettings_EnvironmentOverridesFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.hcl")
	text := "listen = [\"127.0.0.1:0\"]\nroutes = \"" + dir + "/none\"\nlog_level = \"info\"\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const warning = "wanfed: environment variable WANFED_ROUTES overrides routes of "
	for routes, warned := range map[string]bool{dir + "/none": false, dir + "/other": true} {
		got := execute(t, []string{"WANFED_ROUTES=" + routes, "WANFED_DRAIN_TIME=5s"}, "gateway", "--config-file", path)
		if got.code != 1 || strings.Contains(got.stderr, warning+path+"\n") != warned ||
			strings.Count(got.stderr, " overrides ") > 1 {
			t.Errorf("WANFED_ROUTES=%s: exit status = %d, stderr %q, want 1 and a warning: %v",
				routes, got.code, got.stderr, warned)
		}
	}
	got := execute(t, []string{"WANFED_CA_FILE=ca.pem"}, "gateway", "--config-file", path)
	if got.code != 2 || !strings.Contains(got.stderr, "remove WANFED_CA_FILE in the environment, or") {
		t.Errorf("WANFED_CA_FILE: exit status = %d, stderr %q, want 2 and the name of the variable",
			got.code, got.stderr)
	}
}

func TestLoadSettings_AllErrors(t *testing.T) {
	_, err := load(t, "prot = 1\nquiet = \"maybe\"\n", map[string]string{"WANFED_PORT": "many"})
	u, ok := errors.AsType[usageError](err)
	if !ok {
		t.Fatalf("loadSettings() = %v, want a usage error", err)
	}
	if n := len(settings.Split(u.error)); n != 3 {
		t.Fatalf("errors = %d, want 3: %v", n, err)
	}
}
