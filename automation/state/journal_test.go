// SPDX-License-Identifier: MPL-2.0

package state

import (
	"bytes"
	"os"
	"testing"
)

func TestBackend_Keep(t *testing.T) {
	s := newStore(t, newServer(t))
	b := newBackend(t, s, t.TempDir())
	c := mustClaim(t, s, 1)
	var paths []string
	for range 2 {
		path, err := b.Keep(c, "r1", tfstate(3, "secret"))
		if err != nil {
			t.Fatalf("Keep() = %v, want nil", err)
		}
		paths = append(paths, path)
	}
	if got := b.Kept("web"); len(got) != 1 || paths[0] != got[0] || paths[1] != got[0] || len(b.Kept("we")) != 0 {
		t.Errorf("Kept() = %q after Keep() = %q, want one file", got, paths)
	}
	raw, err := os.ReadFile(paths[0])
	if err != nil || bytes.Contains(raw, []byte("secret")) {
		t.Errorf("ReadFile() = %q, %v, want no part of the state", raw, err)
	}
	if name, data, err := OpenJournal(paths[0], s.cfg.KeyFile); err != nil || name != "web" || !bytes.Equal(data, tfstate(3, "secret")) {
		t.Errorf("OpenJournal() = %s, %s, %v, want the state of task web", name, data, err)
	}
	// Terraform has not set the lineage of its first state.
	first := bytes.Replace(tfstate(0, "a"), []byte("l1"), nil, 1)
	for range 2 {
		if _, err := b.Keep(c, "r2", first); err != nil {
			t.Errorf("Keep() of a state without a lineage = %v, want nil", err)
		}
	}
	if err := b.Replay(t.Context()); err != nil || len(b.Kept("web")) != 2 {
		t.Errorf("Replay() = %v, want nil and both files", err)
	}
}
