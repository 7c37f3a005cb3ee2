// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/keyring"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// parts are the components of one server, each knowing only what it was given. Built by assemble, run by run.
type parts struct {
	cfg    Config
	logger *slog.Logger
	nodeID string
	addrs  Addrs
	adv    netip.AddrPort // what others dial

	// the lower group
	serverLn net.Listener
	identity *tlsutil.Identity
	book     *wanfed.SharedAddressBook
	dialer   *wanfed.Dialer
	prober   *wanfed.Prober
	mux      *wanfed.Mux
	tunnel   *wanfed.Tunnel
	calls    *dcrpc.Client
	caughtUp chan struct{} // closed when the store is level with its datacenter

	store     *raftstore.Store
	routed    *resource.ForwardingBackend // store, with what the leader alone can do
	registry  *resource.Registry
	resources *resource.Service

	// the upper group
	keys        *gossip.KeyringStore // nil: gossip is not encrypted
	lan, wan    *gossip.Pool
	keyring     *keyring.Service
	addressBook *federation.AddressBookUpdater
	joiner      *federation.Joiner
	hinter      *federation.GatewayTagger
	group       *group
	operator    *operator.Service
	gateways    *catalog.Gateways
	reports     *catalog.TTLMonitor
	antiEntropy *replication.AntiEntropy
	primacy     *replication.PrimaryManager
	disputes    *federation.PrimaryConflicts
	rivals      rivals
	followed    *replication.Source // of use in the primary
	edge        *rpc.Edge
	grpcLn      net.Listener // connections of this datacenter, and of gateways, clients and operators
	callsLn     net.Listener // of other datacenters' servers
	http        *http.Server
	httpLn      net.Listener
	httpMux     *wanfed.Mux  // on httpLn
	httpConns   net.Listener // of httpMux
}

// assemble builds every part of a validated configuration. It listens on both ports and opens the store; it serves nothing.
// The ports come first: a server that cannot have them leaves nothing on the disk.
func assemble(cfg Config, id *tlsutil.Identity) (_ *parts, err error) {
	p := &parts{cfg: cfg, identity: id, logger: cfg.Logger.With("dc", cfg.DC, "node", cfg.Node)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for _, build := range []func() error{
		p.buildPorts, p.buildData, p.buildTunnel, p.buildStore, p.buildPools, p.buildRecords, p.buildChecks, p.buildKeyring, p.buildGRPC, p.buildHTTP,
	} {
		if err := build(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// close gives back what assemble took and run did not: idempotent.
func (p *parts) close() error {
	var errs []error
	for _, ln := range []net.Listener{p.serverLn, p.httpLn} {
		if ln != nil {
			if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if p.store != nil {
		errs = append(errs, p.store.Close())
	}
	return errors.Join(errs...)
}

func (p *parts) buildPorts() (err error) {
	p.serverLn, err = listen(net.JoinHostPort(p.cfg.Bind, strconv.Itoa(p.cfg.Port)), "--port or --bind")
	if err != nil {
		return err
	}
	ip, err := p.cfg.advertiseIP()
	if err != nil {
		return err
	}
	p.adv = netip.AddrPortFrom(ip, uint16(p.serverLn.Addr().(*net.TCPAddr).Port))
	addr, useTLS, err := parseHTTPAddr(p.cfg.HTTPAddr)
	if err != nil {
		return err
	}
	if p.httpLn, err = listen(addr, "--http-addr"); err != nil {
		return err
	}
	scheme := "http"
	if useTLS {
		scheme = "https"
	}
	p.addrs = Addrs{Server: p.adv.String(), HTTP: scheme + "://" + p.httpLn.Addr().String()}
	return nil
}

func listen(addr, flag string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("port of %s is taken by another process: stop it (see: ss -ltnp), or choose another with %s", addr, flag)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is no address of this machine: choose another with %s", addr, flag)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("port of %s may not be taken by this user: choose one above 1023 with %s, or give the program CAP_NET_BIND_SERVICE", addr, flag)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

func (p *parts) buildTunnel() (err error) {
	p.book = &wanfed.SharedAddressBook{}
	p.dialer, err = wanfed.NewDialer(wanfed.DialerConfig{
		Identity: p.identity, AddressBook: p.book, Mode: wanfed.Mode(p.cfg.MeshGatewayMode), Logger: p.logger,
	})
	if err != nil {
		return err
	}
	if p.prober, err = wanfed.NewProber(wanfed.ProberConfig{Dialer: p.dialer, Logger: p.logger}); err != nil {
		return err
	}
	p.mux, err = wanfed.NewMux(wanfed.MuxConfig{Identity: p.identity, ProxyFrom: p.cfg.ProxyFrom, OnPeer: p.heard, Logger: p.logger})
	if err != nil {
		return err
	}
	p.tunnel, err = wanfed.NewTunnel(wanfed.TunnelConfig{
		Identity: p.identity, Dialer: p.dialer, Mux: p.mux, Advertise: p.adv.String(), Logger: p.logger,
	})
	if err != nil {
		return err
	}
	p.calls = dcrpc.New(dcrpc.Config{DC: p.cfg.DC, PrimaryDC: p.cfg.PrimaryDC, Tunnel: p.tunnel, Dialer: p.dialer, Book: p.book})
	p.callsLn = p.tunnel.GRPCListener()
	return nil
}

// heard is called for every connection that a peer has opened: a server that has come from a datacenter has probably found a way that
// leads back too.
func (p *parts) heard(peer tlsutil.Peer) {
	if peer.Role == tlsutil.RoleServer {
		p.calls.PeerConnected(peer.DC)
	}
}

func (p *parts) buildStore() (err error) {
	if p.registry, err = newRegistry(); err != nil {
		return err
	}
	p.store, err = raftstore.Open(raftstore.Config{
		Node: p.cfg.Node,
		Dir:  filepath.Join(p.cfg.DataDir, "raft"),
		Stream: raftStream{
			Listener: p.mux.Listener(wanfed.ProtoRaft, []tlsutil.Role{tlsutil.RoleServer}, true),
			dc:       p.cfg.DC, dialer: p.dialer,
		},
		OpsVersion: p.understood,
		Heartbeat:  p.cfg.heartbeat,
		Logger:     p.logger,
	})
	return err
}
