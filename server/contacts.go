// SPDX-License-Identifier: MPL-2.0

package server

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

// contacts has the addresses of the other servers of this datacenter. It stores
// the last known address of each server in a file. A restarted server reads the
// file and therefore finds the other servers without retry_join.
type contacts struct {
	node, dc string
	path     string // path of the file, a JSON object of host:port by node
	lan, wan *gossip.Pool
	peers    func() ([]string, error) // returns the nodes of the Raft group
	logger   *slog.Logger

	mu   sync.Mutex
	file map[string]string // content of the file
}

// load reads the file. A damaged file is logged and ignored.
func (c *contacts) load() {
	c.file = map[string]string{}
	stored := map[string]string{}
	b, err := os.ReadFile(c.path)
	if err == nil {
		err = json.Unmarshal(b, &stored)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.logger.Warn("cannot read the addresses of other servers", "err", err)
		return
	}
	for node, addr := range stored {
		if err := netaddr.CheckHostPort(addr); err == nil && node != c.node && len(c.file) < maxContacts {
			c.file[node] = addr
		}
	}
}

// run updates the file at each change of the LAN pool until ctx ends.
func (c *contacts) run(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := c.lan.Changed()
		if err := c.update(c.lan.Members()); err != nil {
			c.logger.Warn("cannot write the addresses of other servers", "err", err)
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
func (c *contacts) update(members []gossip.Member) error {
	peers, err := c.peers()
	if err != nil {
		return fmt.Errorf("read the Raft group: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := maps.Clone(c.file)
	for _, m := range members {
		_, known := next[m.Name]
		switch {
		case m.Name == c.node:
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
	if err := atomicfile.WriteFile(c.path, append(b, '\n'), 0o600); err != nil {
		return err
	}
	c.file = next
	return nil
}

// known returns the last known address of each other server of this datacenter.
// The LAN pool takes precedence over the WAN pool, and the WAN pool over the
// file.
func (c *contacts) known() map[string]string {
	c.mu.Lock()
	out := maps.Clone(c.file)
	c.mu.Unlock()
	for _, m := range c.wan.Members() {
		if node, dc, err := federation.SplitWANName(m.Name); err == nil && dc == c.dc && m.Alive() {
			out[node] = m.Addr
		}
	}
	for _, m := range c.lan.Members() {
		out[m.Name] = m.Addr
	}
	delete(out, c.node)
	return out
}
