// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// SyncService is the default name of the service of sync daemons, and the
	// prefix of all other names that it may have.
	SyncService = "consul-terraform-sync"
	// syncNodePrefix is the prefix of the nodes that sync daemons register.
	syncNodePrefix = "sync."
)

// SyncRegistration registers a sync daemon: a node, with one service and at most
// one check.
type SyncRegistration struct {
	ID          string // of the daemon
	NodeAddress string // host without port
	Service     string // its name begins with SyncService
	Tags        []string
	Address     string // host of the HTTP API. Empty: NodeAddress
	Port        int
	CheckName   string
	TTL         time.Duration // 0: no check
	Deregister  time.Duration // time in critical state after which the service is deleted
}

// IsSyncNode reports whether a sync daemon may have registered the node.
func IsSyncNode(node string) bool { return strings.HasPrefix(node, syncNodePrefix) }

// Node returns the name of the node.
func (r SyncRegistration) Node() string { return syncNodePrefix + r.ID }

// CheckID returns the id of the check.
func (r SyncRegistration) CheckID() string { return "service:" + r.ID }

// NodeID returns the id of the node's resource, which owns the others.
func (r SyncRegistration) NodeID() *pb.ID { return resource.ID(NodeType, r.Node()) }

// Resources returns the resources of the registration. Each one owns the next
// one.
func (r SyncRegistration) Resources() ([]*pb.Resource, error) {
	type part struct {
		id   *pb.ID
		data proto.Message
	}
	parts := []part{
		{r.NodeID(), &pb.Node{Node: r.Node(), Address: r.NodeAddress}},
		{resource.ID(ServiceType, resourceName(r.Node(), r.ID)), &pb.Service{Node: r.Node(), Id: r.ID, Service: r.Service,
			Tags: r.Tags, Address: r.Address, Port: uint32(max(r.Port, 0))}},
	}
	if r.TTL > 0 {
		parts = append(parts, part{resource.ID(CheckType, resourceName(r.Node(), r.CheckID())), &pb.Check{Node: r.Node(),
			CheckId: r.CheckID(), Name: r.CheckName, Status: StatusPassing, ServiceId: r.ID, ServiceName: r.Service,
			Type: TypeTTL, Ttl: durationpb.New(r.TTL), DeregisterAfter: durationpb.New(r.Deregister)}})
	}
	var out []*pb.Resource
	for _, p := range parts {
		res := &pb.Resource{Id: p.id}
		if err := resource.SetData(res, p.data); err != nil {
			return nil, err
		}
		res.Generation = ""
		out = append(out, res)
	}
	return out, nil
}

// authorizeSync returns the reason why a sync daemon may not write or delete r,
// or nil. The certificates of daemons have no names, so each daemon may write
// the registrations of all of them.
func authorizeSync(r *pb.Resource) error {
	name := r.GetId().GetName()
	node := nodeOf(r)
	denied := fmt.Errorf("a sync daemon writes only its registration: node %sID with a service %s", syncNodePrefix, SyncService)
	if !IsSyncNode(name) {
		return denied
	}
	if r.GetData() == nil { // a deletion of what does not exist
		return nil
	}
	m, err := r.GetData().UnmarshalNew()
	if err != nil {
		return err
	}
	isNode := name == node // the resources of services and checks also have an id
	switch m := m.(type) {
	case *pb.Node:
		if isNode && m.Node == name {
			return nil
		}
	case *pb.Service:
		if !isNode && nodeEscaper.Replace(m.Node) == node && m.Kind == "" && strings.HasPrefix(m.Service, SyncService) {
			return nil
		}
	case *pb.Check:
		if !isNode && nodeEscaper.Replace(m.Node) == node && m.Probe == nil {
			return nil
		}
	}
	return denied
}
