// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// CADir returns the directory of the keys with which a server signs the
// certificates of new machines: see enroll.Authority. A server without the
// directory signs none.
func CADir(dataDir string) string { return filepath.Join(dataDir, "ca") }

// serveEnrollment registers the service that issues certificates for tokens.
func (c *components) serveEnrollment() {
	authority := c.cfg.authority()
	if err := authority.Protect(c.logger); err != nil {
		c.logger.Error("cannot use a CA key: this server issues no certificates with it", "err", err)
	}
	service := enroll.NewService(enroll.Config{
		DC: c.cfg.DC, Node: c.cfg.Node,
		Authority: authority,
		CAs:       c.cfg.trustedCAs,
		Backend:   c.policy.Noting(c.strong), Known: c.knownDatacenter, Taken: c.nodeTaken, Federation: c.forNewNodes,
		GossipKey: c.keyring.PrimaryKey,
		Record:    c.policy.Record,
		Logger:    c.logger.With("component", "enroll"),
	})
	c.network.mux.HandleAnonymous(wanfed.ProtoEnroll, service.Serve)
	c.renewals = enroll.NewRenewalService(enroll.RenewalConfig{
		DC: c.cfg.DC, Identity: c.network.identity, Authority: authority, Peer: rpc.Peer, Servers: c.otherServers,
		OperatorFile: filepath.Join(filepath.Dir(c.cfg.CAFile), "operator.pem"), Expected: c.enrollable,
		Connect: c.serverConn, Logger: c.logger.With("component", "enroll"),
	})
	pb.RegisterEnrollmentServiceServer(c.edge, c.renewals)
}

// enrollable returns the servers and gateways of this datacenter, also those that
// do not run.
func (c *components) enrollable() (all []tlsutil.Peer, _ error) {
	peers, err := c.store.Peers()
	if err != nil {
		return nil, err
	}
	for _, node := range peers {
		all = append(all, tlsutil.Peer{Role: tlsutil.RoleServer, DC: c.cfg.DC, Node: node})
	}
	for _, m := range c.lan.Members() { // a new server is not in the Raft group yet
		if p := (tlsutil.Peer{Role: tlsutil.RoleServer, DC: c.cfg.DC, Node: m.Name}); m.Alive() && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	state, _, err := federation.ReadState(c.lifetime, c.store, c.cfg.DC)
	for _, g := range state.GetMeshGateways() {
		all = append(all, tlsutil.Peer{Role: tlsutil.RoleGateway, DC: c.cfg.DC, Node: g.GetNode().GetNode()})
	}
	return all, err
}

// authority returns what issues certificates at this server.
func (c Config) authority() enroll.Authority {
	a := enroll.Authority{
		Dir: CADir(c.DataDir), DC: c.DC, Domain: c.Domain, Life: c.CertLife,
		Keys: enroll.NewCAKeys(enroll.Passphrase{File: c.IssuingKeyPassphraseFile}),
	}
	if len(c.SignerCommand) > 0 {
		a.Command = enroll.NewSignerCommand(c.SignerCommand, c.trustedCAs)
	}
	return a
}

// trustedCAs returns the CAs that all datacenters trust, in PEM.
func (c Config) trustedCAs() ([]byte, error) { return os.ReadFile(c.CAFile) }

// checkIssuing returns an error if the passphrase or the signer command cannot be
// used. A server with this fault runs, and issues no certificates.
func (c Config) checkIssuing() error {
	var errs []error
	if c.IssuingKeyPassphraseFile != "" {
		if _, err := (enroll.Passphrase{File: c.IssuingKeyPassphraseFile}).Read(); err != nil {
			errs = append(errs, fmt.Errorf("issuing_key_passphrase_file: %w", err))
		}
	}
	if len(c.SignerCommand) > 0 {
		if _, err := exec.LookPath(c.SignerCommand[0]); err != nil {
			errs = append(errs, fmt.Errorf("signer_command: %w; write the path of a program", err))
		}
	}
	return errors.Join(errs...)
}

// otherServers returns the names of the other servers of this datacenter.
func (c *components) otherServers() (nodes []string) {
	for _, m := range c.lan.Members() {
		if m.Alive() && m.Name != c.cfg.Node {
			nodes = append(nodes, m.Name)
		}
	}
	return nodes
}

// runRenewal renews the certificate of this server, with a call at this server,
// until ctx ends. The call is authorized and recorded like those of others.
func (c *components) runRenewal(ctx context.Context) error {
	return enroll.Renewer{
		Identity: c.network.identity, Logger: c.logger,
		Connect: func() (grpc.ClientConnInterface, error) { return c.network.calls.Server(c.cfg.Node) },
	}.Run(ctx)
}

// runReissue replaces the CA of this datacenter when another CA of all datacenters
// issues, until ctx ends.
func (c *components) runReissue(ctx context.Context) error {
	return enroll.Reissuer{
		Identity: c.network.identity, Authority: c.cfg.authority(), Logger: c.logger,
		Connect: func(dc string) (grpc.ClientConnInterface, error) {
			if dc == c.cfg.DC {
				return c.network.calls.Server(c.cfg.Node)
			}
			return c.network.calls.Reader(dc), nil
		},
	}.Run(ctx)
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
