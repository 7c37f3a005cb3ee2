// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
)

// Registration describes a proxy. The only kind of proxy is the gateway.
type Registration struct {
	// Name is the name of the gateway in its datacenter.
	Name string `json:"name"`
	// LAN is the address (host:port) that servers of this datacenter dial. WAN
	// is the address that other datacenters dial.
	LAN string `json:"lan"`
	WAN string `json:"wan"`
}

func (r Registration) check() error {
	err := tlsutil.CheckLabel(r.Name)
	for _, addr := range []string{r.LAN, r.WAN} {
		err = errors.Join(err, netaddr.CheckHostPort(addr))
	}
	if err != nil {
		return fmt.Errorf("register gateway %q: %w", r.Name, err)
	}
	return nil
}

// Snapshot contains everything that one gateway needs to know. It is complete:
// it has at least one server. A Snapshot and everything in it is immutable.
type Snapshot struct {
	Registration
	Datacenter string `json:"datacenter"` // local datacenter
	Domain     string `json:"domain"`     // of the names in certificates
	// Servers are the alive servers of the local datacenter, ordered by node.
	Servers []Server `json:"servers"`
	// Datacenters are the other datacenters, ordered by name. Snapshots share
	// the elements. An element that did not change has the same address in the
	// next snapshot.
	Datacenters []*Datacenter `json:"datacenters"`
}

// Server is a server of the local datacenter.
type Server struct {
	Node    string `json:"node"`
	Name    string `json:"server_name"` // SNI
	Address string `json:"address"`     // host:port
}

// Datacenter is another datacenter.
type Datacenter struct {
	DC string `json:"datacenter"`
	// Name is the SNI of any server of the datacenter. A name below it leads to
	// one server.
	Name string `json:"server_name"`
	// Gateways are addresses (host:port), at least one, without duplicates, the
	// preferred address first.
	Gateways []string `json:"gateways"`
	// Current is the number of the first addresses that are of healthy gateways,
	// according to a current source. 0: unknown.
	Current int `json:"current"`
	// Refuse are the kinds of addresses to which a name in Gateways must not
	// resolve. Names without an entry may resolve to all.
	Refuse map[string]netaddr.Class `json:"-"`
}

// LocalName returns the SNI of any server of the local datacenter.
func (s *Snapshot) LocalName() string { return tlsutil.ServerName("", s.Datacenter, s.Domain) }

// LocalAddresses returns the addresses of the servers, without duplicates.
func (s *Snapshot) LocalAddresses() []string {
	var all []string
	for _, server := range s.Servers {
		if !slices.Contains(all, server.Address) {
			all = append(all, server.Address)
		}
	}
	return all
}

func (s *Snapshot) equal(o *Snapshot) bool {
	return s != nil && s.Registration == o.Registration && slices.Equal(s.Servers, o.Servers) &&
		slices.EqualFunc(s.Datacenters, o.Datacenters, (*Datacenter).equal)
}

func (d *Datacenter) equal(o *Datacenter) bool {
	return d == o || d.DC == o.DC && d.Name == o.Name && d.Current == o.Current &&
		slices.Equal(d.Gateways, o.Gateways) && maps.Equal(d.Refuse, o.Refuse)
}

// build builds the snapshot of a gateway. It returns nil while an input is
// missing. A server that has just started does not have the list of servers
// yet, so a list without servers is a missing input.
func build(dc, domain string, r Registration, servers []Server, datacenters []*Datacenter) *Snapshot {
	if len(servers) == 0 || datacenters == nil {
		return nil
	}
	return &Snapshot{Registration: r, Datacenter: dc, Domain: domain, Servers: servers, Datacenters: datacenters}
}

// maxGateways is the maximum number of addresses of a route, see
// gateway.CheckRoute.
const maxGateways = 1024

// parse returns the valid parts of a message. Its faults are the invalid parts,
// such as an address without a port. A fault in one datacenter does not affect
// other datacenters. datacenters is not nil. parse is pure.
func parse(m *pb.GatewaySnapshot) (servers []Server, datacenters []*Datacenter, faults []error) {
	dc, domain := m.GetDatacenter(), m.GetDomain()
	names := map[string]bool{}
	valid := func(node, datacenter string) (name string, err error) {
		name = tlsutil.ServerName(node, datacenter, domain)
		if names[name] {
			return name, fmt.Errorf("duplicate name %q", name)
		}
		return name, netaddr.CheckDNSName(name)
	}
	for _, s := range m.GetServers() {
		name, err := valid(s.GetNode(), dc)
		err = errors.Join(tlsutil.CheckLabel(s.GetNode()), err, netaddr.CheckHostPort(s.GetAddress()))
		if err != nil {
			faults = append(faults, fmt.Errorf("server %q: %w", s.GetNode(), err))
			continue
		}
		names[name] = true
		servers = append(servers, Server{Node: s.Node, Name: name, Address: s.Address})
	}
	datacenters = []*Datacenter{}
	for _, d := range m.GetDatacenters() {
		if d.GetName() == dc {
			continue // a route to a local gateway would be a loop
		}
		name, err := valid("", d.GetName())
		if err = errors.Join(tlsutil.CheckLabel(d.GetName()), err); err != nil {
			faults = append(faults, fmt.Errorf("datacenter %q: %w", d.GetName(), err))
			continue
		}
		var to []string
		current, refuse := 0, map[string]netaddr.Class(nil)
		for i, addr := range d.Gateways[:min(len(d.Gateways), maxGateways)] {
			if err := netaddr.CheckHostPort(addr); err != nil {
				faults = append(faults, fmt.Errorf("gateway of datacenter %s: %w", d.Name, err))
			} else if !slices.Contains(to, addr) {
				if to = append(to, addr); i < int(d.Current) {
					current = len(to)
				}
				if i < len(d.Refuse) && d.Refuse[i] != 0 {
					if refuse == nil {
						refuse = map[string]netaddr.Class{}
					}
					refuse[addr] = netaddr.Class(d.Refuse[i])
				}
			}
		}
		if len(to) > 0 {
			names[name] = true
			datacenters = append(datacenters, &Datacenter{DC: d.Name, Name: name, Gateways: to, Current: current, Refuse: refuse})
		}
	}
	slices.SortFunc(servers, func(a, b Server) int { return strings.Compare(a.Node, b.Node) })
	slices.SortFunc(datacenters, func(a, b *Datacenter) int { return strings.Compare(a.DC, b.DC) })
	return servers, datacenters, faults
}
