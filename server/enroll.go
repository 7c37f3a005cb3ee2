// SPDX-License-Identifier: MPL-2.0

package server

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

// CADir returns the directory of the keys with which a server signs the
// certificates of new machines: see enroll.Authority. A server without the
// directory signs none.
func CADir(dataDir string) string { return filepath.Join(dataDir, "ca") }

// serveEnrollment registers the service that issues certificates for tokens.
func (c *components) serveEnrollment() {
	service := enroll.NewService(enroll.Config{
		DC: c.cfg.DC, Node: c.cfg.Node,
		Authority: enroll.Authority{Dir: CADir(c.cfg.DataDir), DC: c.cfg.DC, Domain: c.cfg.Domain},
		CAs:       func() ([]byte, error) { return os.ReadFile(c.cfg.CAFile) },
		Backend:   c.policy.Noting(c.strong), Known: c.knownDatacenter, Taken: c.nodeTaken, Federation: c.forNewNodes,
		Record: c.policy.Record,
		Logger: c.logger.With("component", "enroll"),
	})
	c.network.mux.HandleAnonymous(wanfed.ProtoEnroll, service.Serve)
}

// knownDatacenter reports whether the federation has, or had, a datacenter dc.
func (c *components) knownDatacenter(dc string) bool {
	state, _, err := federation.ReadState(c.lifetime, c.store, dc)
	return err != nil || state != nil || c.anyServerAlive(dc)
}

// nodeTaken reports whether a node of this datacenter has the name. role is that
// of a token.
func (c *components) nodeTaken(role, node string) bool {
	peers, _ := c.store.Peers()
	if slices.Contains(peers, node) || slices.ContainsFunc(c.lan.Members(), func(m gossip.Member) bool { return m.Name == node }) {
		return role == enroll.RoleServer
	}
	_, err := c.store.Read(c.lifetime, resource.Eventual, resource.ID(catalog.NodeType, node))
	return role == enroll.RoleGateway && err == nil
}

// forNewNodes returns the settings of a new server or gateway of this
// datacenter.
func (c *components) forNewNodes() (primary string, gateways, servers []string) {
	for _, m := range c.lan.Members() {
		if m.Alive() {
			servers = append(servers, m.Addr)
		}
	}
	if primary = c.manager.PrimaryDC(); primary != c.cfg.DC {
		gateways = c.cfg.PrimaryGateways
	}
	return primary, gateways, servers
}
