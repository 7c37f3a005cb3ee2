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
	pollEvery      = 20 * time.Millisecond
	requestTimeout = 3 * time.Second
)

// watch polls one server until the server has completed all steps.
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
		{stepRequest, func(ctx context.Context, c *api.Client) string { return f.missingAnswers(ctx, c, dc) }},
	} {
		if err := f.await(ctx, s.Name(), func() string { return w.missing(ctx, c) }); err != nil {
			return err
		}
		f.prog.reach(w.step, f.serverCount())
	}
	return nil
}

// await calls missing until missing returns "". The map f.missing has the last
// result of missing for the server who.
func (f *federation) await(ctx context.Context, who string, missing func() string) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		m := missing()
		if ctx.Err() != nil && m != "" { // the end of ctx cut the request off
			return context.Cause(ctx)
		}
		f.mu.Lock()
		f.missing[who] = m
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

// missingMembers returns the servers that c does not list as alive in the WAN
// pool.
func (f *federation) missingMembers(ctx context.Context, c *api.Client) string {
	members, err := c.Members(ctx, true, api.QueryOptions{})
	if err != nil {
		return err.Error()
	}
	status := make(map[string]string)
	for _, m := range members {
		status[m.Name] = m.Status.String()
	}
	var missing []string
	for _, dc := range f.dcs {
		for _, node := range dc.nodes {
			switch name := node + "." + dc.name; status[name] {
			case api.MemberAlive.String():
			case "":
				missing = append(missing, name+" is not in the WAN pool")
			default:
				missing = append(missing, name+" is "+status[name]+" in the WAN pool")
			}
		}
	}
	return strings.Join(missing, ", ")
}

// missingStates returns the datacenters without a federation state with their
// gateway.
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
		case !slices.ContainsFunc(states[i].MeshGateways, func(g api.MeshGateway) bool { return g.Healthy() && wanOf(g) == gw.WAN }):
			missing = append(missing, "federation state of "+dc.name+" has no healthy gateway at "+gw.WAN)
		}
	}
	return strings.Join(missing, ", ")
}

// wanOf returns the host:port that other datacenters dial.
func wanOf(g api.MeshGateway) string { return taggedOf(g, "wan") }

func taggedOf(g api.MeshGateway, tag string) string {
	a, ok := g.Service.TaggedAddresses[tag]
	if !ok {
		return ""
	}
	return net.JoinHostPort(a.Address, strconv.Itoa(a.Port))
}

// missingAnswers requests the leader and the members of every other datacenter
// through c. It returns the datacenters with a missing or wrong response.
func (f *federation) missingAnswers(ctx context.Context, c *api.Client, own *datacenter) string {
	var missing []string
	for _, dc := range f.dcs {
		if dc == own {
			continue
		}
		if err := f.checkAnswers(ctx, c, dc); err != nil {
			missing = append(missing, fmt.Sprintf("answer of %s: %v", dc.name, err))
		}
	}
	return strings.Join(missing, ", ")
}

func (f *federation) checkAnswers(ctx context.Context, c *api.Client, dc *datacenter) error {
	there := api.QueryOptions{Datacenter: dc.name}
	leader, err := c.Leader(ctx, there)
	if err != nil {
		return err
	}
	servers, _ := dc.running()
	if !slices.ContainsFunc(servers, func(s *subprocess.Server) bool { return s.Addr == leader }) {
		return fmt.Errorf("leader is %q, none of its servers", leader)
	}
	members, err := c.Members(ctx, false, there)
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
