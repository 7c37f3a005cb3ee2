// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
)

const (
	pollInterval   = 20 * time.Millisecond
	requestTimeout = 3 * time.Second
)

// watch polls server s of dc until nothing is missing: all members are alive,
// all federation states have a gateway, and all datacenters respond through s.
func (f *federation) watch(ctx context.Context, dc *datacenter, s *subprocess.Server) error {
	c, err := client(s)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, w := range []struct {
		step    step
		missing func(context.Context, *api.Client) string
	}{
		{stepMembers, f.missingMembers},
		{stepStates, f.missingStates},
		{stepRequest, func(ctx context.Context, c *api.Client) string { return f.missingResponses(ctx, c, dc) }},
	} {
		if err := f.await(ctx, s.Name(), func() string { return w.missing(ctx, c) }); err != nil {
			return err
		}
		f.prog.reach(w.step, f.serverCount())
	}
	return nil
}

// await calls missing repeatedly until it returns "", and records each result
// in f.missing. A result describes what the server still lacks.
func (f *federation) await(ctx context.Context, server string, missing func() string) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		m := missing()
		if ctx.Err() != nil && m != "" { // m is the error of a canceled request
			return context.Cause(ctx)
		}
		f.mu.Lock()
		f.missing[server] = m
		f.mu.Unlock()
		if m == "" {
			return nil
		}
		if err := f.ended(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// missingMembers describes the servers that are not alive in the WAN pool of c.
func (f *federation) missingMembers(ctx context.Context, c *api.Client) string {
	members, err := c.Members(ctx, true, api.QueryOptions{})
	if err != nil {
		return err.Error()
	}
	status := make(map[string]api.MemberStatus)
	for _, m := range members {
		status[m.Name] = m.Status
	}
	var missing []string
	for _, dc := range f.dcs {
		for _, node := range dc.nodes {
			name := node + "." + dc.name
			if s, ok := status[name]; !ok {
				missing = append(missing, name+" is not in the WAN pool")
			} else if s != api.MemberAlive {
				missing = append(missing, name+" is "+s.String()+" in the WAN pool")
			}
		}
	}
	return strings.Join(missing, ", ")
}

// missingStates describes the datacenters whose federation state at c lacks
// their gateway.
func (f *federation) missingStates(ctx context.Context, c *api.Client) string {
	states, _, err := c.FederationStates(ctx, api.QueryOptions{})
	if err != nil {
		return err.Error()
	}
	var missing []string
	for _, dc := range f.dcs {
		i := slices.IndexFunc(states, func(s api.FederationState) bool { return s.Datacenter == dc.name })
		_, gw := dc.running()
		switch {
		case gw == nil:
			missing = append(missing, "gateway of "+dc.name+" is not started")
		case i < 0:
			missing = append(missing, "no federation state of "+dc.name)
		case !slices.ContainsFunc(states[i].MeshGateways, func(g api.MeshGateway) bool {
			return g.Healthy() && wanOf(g) == gw.WAN
		}):
			missing = append(missing, "federation state of "+dc.name+" has no healthy gateway at "+gw.WAN)
		}
	}
	return strings.Join(missing, ", ")
}

// wanOf returns the host:port that other datacenters dial.
func wanOf(g api.MeshGateway) string {
	a := g.Service.TaggedAddresses["wan"]
	return net.JoinHostPort(a.Address, strconv.Itoa(a.Port))
}

// missingResponses requests the leader and the members of every other
// datacenter through c. It describes the missing and wrong responses.
func (f *federation) missingResponses(ctx context.Context, c *api.Client, own *datacenter) string {
	var missing []string
	for _, dc := range f.dcs {
		if dc == own {
			continue
		}
		if err := checkResponses(ctx, c, dc); err != nil {
			missing = append(missing, fmt.Sprintf("response of %s: %v", dc.name, err))
		}
	}
	return strings.Join(missing, ", ")
}

func checkResponses(ctx context.Context, c *api.Client, dc *datacenter) error {
	options := api.QueryOptions{Datacenter: dc.name}
	leader, err := c.Leader(ctx, options)
	if err != nil {
		return err
	}
	servers, _ := dc.running()
	if !slices.ContainsFunc(servers, func(s *subprocess.Server) bool { return s.Addr == leader }) {
		return fmt.Errorf("leader is %q, which is not a server of %s", leader, dc.name)
	}
	members, err := c.Members(ctx, false, options)
	if err != nil {
		return err
	}
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	if slices.Sort(names); !slices.Equal(names, dc.nodes) {
		return fmt.Errorf("members are %q, want %q", names, dc.nodes)
	}
	return nil
}
