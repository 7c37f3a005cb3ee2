// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// The service of a daemon in the catalog, as that of CTS.
const (
	checkName       = "CTS Health Status"
	checkTTL        = 15 * time.Second
	deregisterAfter = 30 * time.Minute
	registerTimeout = 5 * time.Second
	leaveTimeout    = 2 * time.Second
)

// registrar registers the daemon as a service in a catalog.
type registrar interface {
	// register creates the registration, or renews its check.
	register(ctx context.Context) error
	deregister(ctx context.Context) error
}

// newRegistrar returns the registrar of the daemon, whose HTTP API listens at
// addr, or nil if the files disable the registration.
func (p *process) newRegistrar(resources pb.ResourceServiceClient, addr net.Addr) registrar {
	r := p.files.Consul.Registration
	if !r.Enabled {
		return nil
	}
	host, port := r.Address, 0
	if tcp, ok := addr.(*net.TCPAddr); ok {
		port = tcp.Port
		if tcp.IP.IsLoopback() {
			host = cmp.Or(host, tcp.IP.String())
		}
	}
	tag := "cts"
	if p.files.Cluster != "" {
		tag = "cts-cluster:" + p.files.Cluster
	}
	reg := catalog.SyncRegistration{ID: p.files.ID, Service: r.Name, Tags: []string{tag}, Address: host, Port: port,
		CheckName: checkName, Deregister: deregisterAfter}
	if r.Check {
		reg.TTL = checkTTL
	}
	if p.files.Wanfed.FromConsul {
		return &consulRegistrar{agent: p.to.http, reg: reg}
	}
	return &wanfedRegistrar{servers: p.to, resources: resources, checks: pb.NewCheckServiceClient(p.to.conn), reg: reg}
}

// keepRegistered renews a registration until ctx ends, and then removes it. The
// daemon works without it.
func (p *process) keepRegistered(ctx context.Context, r registrar) {
	pause, last := backoff.Backoff{Min: time.Second, Max: checkTTL}, ""
	registered := false
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, registerTimeout)
		err := r.register(attempt)
		cancel()
		wait := checkTTL / 3
		if !p.files.Consul.Registration.Check {
			wait = time.Minute // another program may have removed it
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if err.Error() != last {
				p.log.Warn("cannot register the daemon as a service", "service", p.files.Consul.Registration.Name, "err", err)
			}
			last, wait = err.Error(), pause.Next()
		default:
			if !registered || last != "" {
				p.log.Info("registered as a service", "service", p.files.Consul.Registration.Name)
			}
			registered, last = true, ""
			pause.Reset()
		}
		backoff.Sleep(ctx, wait, nil)
	}
	// An attempt that was interrupted may have registered the daemon.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := r.deregister(ctx); err != nil {
		p.log.Warn("cannot remove the registration of the daemon", "err", err)
	}
}

// consulRegistrar registers at an agent of Consul.
type consulRegistrar struct {
	agent      *api.Client
	reg        catalog.SyncRegistration
	registered bool
}

func (c *consulRegistrar) register(ctx context.Context) error {
	if c.registered && c.reg.TTL > 0 {
		err := c.agent.PassCheck(ctx, api.CheckID(c.reg.ID))
		if err == nil || !api.IsStatus(err, http.StatusNotFound) {
			return err
		}
	}
	r := api.ServiceRegistration{ID: c.reg.ID, Name: c.reg.Service, Tags: c.reg.Tags, Address: c.reg.Address, Port: c.reg.Port}
	if c.reg.TTL > 0 {
		r.Check = api.ServiceCheck{Name: c.reg.CheckName, TTL: c.reg.TTL, Status: api.CheckPassing, DeregisterAfter: c.reg.Deregister}
	}
	err := c.agent.RegisterService(ctx, r)
	c.registered = err == nil
	return err
}

func (c *consulRegistrar) deregister(ctx context.Context) error {
	err := c.agent.DeregisterService(ctx, c.reg.ID)
	if api.IsStatus(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// wanfedRegistrar registers at the servers of wanfed.
type wanfedRegistrar struct {
	servers    *servers
	resources  pb.ResourceServiceClient
	checks     pb.CheckServiceClient
	reg        catalog.SyncRegistration
	registered bool
}

func (w *wanfedRegistrar) register(ctx context.Context) error {
	if w.registered && w.reg.TTL > 0 {
		_, err := w.checks.Report(ctx, &pb.CheckReportRequest{Node: w.reg.Node(), CheckId: w.reg.CheckID(), Status: catalog.StatusPassing})
		if err = resource.FromStatus(err); err == nil || !errors.Is(err, resource.ErrNotFound) {
			return err
		}
	}
	w.registered = false
	address, err := w.servers.localAddress(ctx)
	if err != nil {
		return err
	}
	w.reg.NodeAddress = address
	all, err := w.reg.Resources()
	if err != nil {
		return err
	}
	var owner *pb.ID
	for _, r := range all {
		r.Owner = owner
		resp, err := w.resources.Write(ctx, &pb.WriteRequest{Resource: r})
		if err != nil {
			return fmt.Errorf("write %s: %w", resource.IDString(r.Id), resource.FromStatus(err))
		}
		owner = resp.GetResource().GetId()
	}
	w.registered = true
	return nil
}

func (w *wanfedRegistrar) deregister(ctx context.Context) error {
	_, err := w.resources.Delete(ctx, &pb.DeleteRequest{Id: w.reg.NodeID()})
	if err = resource.FromStatus(err); errors.Is(err, resource.ErrNotFound) {
		return nil
	}
	return err
}

// localAddress returns the address of this machine on the path to a server.
func (s *servers) localAddress(ctx context.Context) (string, error) {
	addrs, err := s.addresses(ctx)
	if err == nil && len(addrs) == 0 {
		err = errors.New("the pool has no member")
	}
	if err != nil {
		return "", fmt.Errorf("find the address of this machine: no server is known: %w", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", addrs[0]) // sends nothing
	if err != nil {
		return "", fmt.Errorf("find the address of this machine: %w", err)
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}
