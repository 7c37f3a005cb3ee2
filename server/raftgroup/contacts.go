// SPDX-License-Identifier: MPL-2.0

package raftgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// maxContacts limits the servers in the contacts file.
const maxContacts = 100

// Contacts has the addresses of the other servers of this datacenter. It stores
// the last known address of each server in a file. A restarted server reads the
// file and therefore finds the other servers without retry_join.
type Contacts struct {
	ContactsConfig

	mu   sync.Mutex
	file map[string]string // content of the file
}

// ContactsConfig configures Contacts. All fields are required.
type ContactsConfig struct {
	DC, Node string // names of this server
	Path     string // path of the file, a JSON object of host:port by node
	LAN, WAN *gossip.Pool
	Peers    func() ([]string, error) // returns the nodes of the Raft group
	Logger   *slog.Logger
}

// NewContacts returns the Contacts of cfg.Path. A damaged file is logged and
// ignored.
func NewContacts(cfg ContactsConfig) *Contacts {
	c := &Contacts{ContactsConfig: cfg}
	c.load()
	return c
}

// load reads the file.
func (c *Contacts) load() {
	c.file = map[string]string{}
	stored := map[string]string{}
	b, err := os.ReadFile(c.Path)
	if err == nil {
		err = json.Unmarshal(b, &stored)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Logger.Warn("cannot read the addresses of other servers", "err", err)
		return
	}
	for node, addr := range stored {
		if err := netaddr.CheckHostPort(addr); err == nil && node != c.Node && len(c.file) < maxContacts {
			c.file[node] = addr
		}
	}
}

// Run updates the file at each change of the LAN pool until ctx ends.
func (c *Contacts) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := c.LAN.Changed()
		if err := c.update(c.LAN.Members()); err != nil {
			c.Logger.Warn("cannot write the addresses of other servers", "err", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// update records the addresses of the alive members. It removes a member that
// left the pool, unless the member is still in the Raft group.
func (c *Contacts) update(members []gossip.Member) error {
	peers, err := c.Peers()
	if err != nil {
		return fmt.Errorf("read the Raft group: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.file)
	for _, m := range members {
		_, known := next[m.Name]
		switch {
		case m.Name == c.Node:
		case m.Alive() && (known || len(next) < maxContacts):
			next[m.Name] = m.Addr
		case m.Status == gossip.StatusLeft && !slices.Contains(peers, m.Name):
			delete(next, m.Name)
		}
	}
	if maps.Equal(next, c.file) {
		return nil
	}
	b, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(c.Path, append(b, '\n'), 0o600); err != nil {
		return err
	}
	c.file = next
	return nil
}

// Known returns the last known address of each other server of this datacenter.
// The LAN pool takes precedence over the WAN pool, and the WAN pool over the
// file.
func (c *Contacts) Known() map[string]string {
	c.mu.Lock()
	out := maps.Clone(c.file)
	c.mu.Unlock()
	for _, m := range c.WAN.Members() {
		if node, dc, err := federation.SplitWANName(m.Name); err == nil && dc == c.DC && m.Alive() {
			out[node] = m.Addr
		}
	}
	for _, m := range c.LAN.Members() {
		out[m.Name] = m.Addr
	}
	delete(out, c.Node)
	return out
}
