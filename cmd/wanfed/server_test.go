// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestServerSettings_UsageErrors(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"server", "--config-file", filepath.Join(t.TempDir(), "absent.hcl")})
	root.SetErr(io.Discard)
	err := root.ExecuteContext(t.Context())
	if !errors.As(err, new(usageError)) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("wanfed server with an absent file = %v, want a usage error that is %v", err, os.ErrNotExist)
	}
	root = newRoot()
	root.SetArgs([]string{"server", "--dc", "dc1", "--port", "-5"})
	root.SetErr(io.Discard)
	err = root.ExecuteContext(t.Context())
	if !errors.As(err, new(usageError)) {
		t.Fatalf("wanfed server = %v, want a usage error", err)
	}
	for _, want := range []string{"node is required", "data_dir is required", "port is -5"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("wanfed server = %v, want %s", err, want)
		}
	}
}
