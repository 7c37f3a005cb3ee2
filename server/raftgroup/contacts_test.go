// SPDX-License-Identifier: MPL-2.0

package raftgroup

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/wanfed/wanfed/gossip"
)

func newContacts(t *testing.T, path string, peers ...string) *Contacts {
	t.Helper()
	return NewContacts(ContactsConfig{
		Node: "srv1", DC: "dc1", Path: path, Logger: slog.New(slog.DiscardHandler),
		Peers: func() ([]string, error) { return peers, nil },
	})
}

func TestContacts_Update(t *testing.T) {
	member := func(node, addr string, status gossip.Status) gossip.Member {
		return gossip.Member{Name: node, Addr: addr, Status: status}
	}
	path := filepath.Join(t.TempDir(), "servers.json")
	c := newContacts(t, path, "srv1", "srv2", "srv3")
	for _, step := range []struct {
		name    string
		members []gossip.Member
		want    map[string]string
	}{
		{"no other member", []gossip.Member{member("srv1", "a:1", gossip.StatusAlive)}, map[string]string{}},
		{"alive members", []gossip.Member{
			member("srv2", "b:1", gossip.StatusAlive), member("srv4", "d:1", gossip.StatusAlive),
		}, map[string]string{"srv2": "b:1", "srv4": "d:1"}},
		{"a new address", []gossip.Member{member("srv2", "b:2", gossip.StatusAlive)},
			map[string]string{"srv2": "b:2", "srv4": "d:1"}},
		{"a failed member", []gossip.Member{member("srv4", "d:9", gossip.StatusFailed)},
			map[string]string{"srv2": "b:2", "srv4": "d:1"}},
		{"a voter and a non-voter that left", []gossip.Member{
			member("srv2", "b:2", gossip.StatusLeft), member("srv4", "d:1", gossip.StatusLeft),
		}, map[string]string{"srv2": "b:2"}},
	} {
		if err := c.update(step.members); err != nil {
			t.Fatalf("update() with %s = %v, want nil", step.name, err)
		}
		if !maps.Equal(c.file, step.want) {
			t.Errorf("contacts after update() with %s = %v, want %v", step.name, c.file, step.want)
		}
		if got := newContacts(t, path).file; !maps.Equal(got, step.want) {
			t.Errorf("contacts after update() with %s and a restart = %v, want %v", step.name, got, step.want)
		}
	}
}

func TestContacts_DamagedFile(t *testing.T) {
	for _, content := range []string{"", "{", `["srv2"]`, `{"srv2": 1}`} {
		path := filepath.Join(t.TempDir(), "servers.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := newContacts(t, path).file; len(got) > 0 {
			t.Errorf("contacts of the file %q = %v, want none", content, got)
		}
	}
	path := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(path, []byte(`{"srv1": "a:1", "srv2": "no port", "srv3": "c:1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := newContacts(t, path).file, map[string]string{"srv3": "c:1"}; !maps.Equal(got, want) {
		t.Errorf("contacts of a file with an invalid address = %v, want %v", got, want)
	}
}

func TestContacts_UnknownRaftGroup(t *testing.T) {
	c := newContacts(t, filepath.Join(t.TempDir(), "servers.json"))
	unknown := errors.New("closed")
	c.Peers = func() ([]string, error) { return nil, unknown }
	if err := c.update(nil); !errors.Is(err, unknown) {
		t.Errorf("update() = %v, want %v", err, unknown)
	}
}
