// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// Two primaries can have one name: a configuration was copied, or the primary
// was rebuilt without a snapshot. Their Raft groups have different ids. A
// secondary accepts the group that it followed first. It ends a stream from
// another group before it stores anything, until an operator accepts the other
// group (see PrimaryManager.ReplacePrimary). A primary that is restored from a
// snapshot has the id in the snapshot, and is accepted.

const (
	// maxGroupID limits the length of the id of a Raft group in bytes.
	maxGroupID = 64
	// maxGroupGateways limits the addresses of gateways in a message.
	maxGroupGateways = 8
	// rejectionTimeout is the time after a follower has rejected this datacenter
	// for which RejectedBy reports it.
	rejectionTimeout = 30 * time.Second
)

// AcceptedGroup returns the id of the Raft group that this datacenter accepts as
// datacenter dc, or "" if any group is accepted.
func (p *PrimaryManager) AcceptedGroup(dc string) string {
	if st := p.stored(); dc != p.cfg.DC && st.GetDatacenter() == dc && st.GetGroupId() != "" {
		return st.GetGroupId()
	}
	state, _, err := federation.ReadState(context.Background(), p.cfg.Backend, dc) // reads memory
	if err != nil {
		return ""
	}
	return state.GetGroupId()
}

// checkGroup returns an error unless the source that has sent begin belongs to
// the accepted group of datacenter dc.
func (p *PrimaryManager) checkGroup(dc string, begin *pb.FollowBegin) error {
	accepted, got := p.AcceptedGroup(dc), begin.GetGroupId()
	if len(got) > maxGroupID {
		return fmt.Errorf("the group id of %s has %d bytes: more than %d", dc, len(got), maxGroupID)
	}
	if accepted == "" || got == "" || accepted == got {
		return nil
	}
	return &otherGroupError{
		dc: dc, own: p.cfg.DC, accepted: accepted, gateways: p.gatewaysOf(dc),
		other: got, otherGateways: validAddrs(begin.GetGateways()),
	}
}

// otherGroupError reports that another group has the name of the primary.
type otherGroupError struct {
	dc, own, accepted, other string
	gateways, otherGateways  []string
}

func (e *otherGroupError) Error() string {
	return fmt.Sprintf("another datacenter is called %[1]s too: the accepted one has the group id %[2]s%[3]s, and the "+
		"one that responds has %[4]s%[5]s; stop the wrong one, or, if %[1]s was rebuilt, run: "+
		"wanfed federation replace %[1]s --id %[4]s --datacenter %[6]s",
		e.dc, e.accepted, at(e.gateways), e.other, at(e.otherGateways), e.own)
}

// at returns the addresses for a message.
func at(addrs []string) string {
	if len(addrs) == 0 {
		return ""
	}
	return " at " + strings.Join(addrs, ", ")
}

// validAddrs returns the addresses that a peer has sent, without invalid ones.
func validAddrs(addrs []string) (valid []string) {
	for _, a := range addrs[:min(len(addrs), maxGroupGateways)] {
		if netaddr.CheckHostPort(a) == nil {
			valid = append(valid, a)
		}
	}
	return valid
}

// gatewaysOf returns the WAN addresses of the gateways of a datacenter in its
// federation state.
func (p *PrimaryManager) gatewaysOf(dc string) []string {
	state, _, _ := federation.ReadState(context.Background(), p.cfg.Backend, dc) // reads memory
	return wanAddrs(state.GetMeshGateways())
}

func wanAddrs(gateways []*pb.MeshGateway) (addrs []string) {
	for _, g := range gateways[:min(len(gateways), maxGroupGateways)] {
		if a := catalog.TaggedAddr(g, catalog.TagWAN); a != "" {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// ReplacePrimary accepts the Raft group id as the primary of this datacenter. It
// returns the id of the group that was accepted before, or "". Only the leader
// may call it.
func (p *PrimaryManager) ReplacePrimary(ctx context.Context, id string) (previous string, err error) {
	st := p.stored()
	if st.GetDatacenter() == "" || st.GetDatacenter() == p.cfg.DC {
		return "", fmt.Errorf("%s has no other datacenter as its primary", p.cfg.DC)
	}
	if previous = p.AcceptedGroup(st.GetDatacenter()); previous == id {
		return previous, nil
	}
	err = p.update(ctx, func(st *pb.Primary) {
		// The indexes of the other group are unrelated.
		st.GroupId, st.Complete, st.Reached = id, false, 0
	})
	if err != nil {
		return "", err
	}
	p.cfg.Remote.Disconnect(st.GetDatacenter())
	return previous, nil
}

// sourceGroup returns the id of the local group and the addresses of its
// gateways for the first message of a stream.
func (s *Source) sourceGroup(ctx context.Context) (id string, gateways []string, err error) {
	if id, err = federation.GroupID(ctx, s.backend); err != nil {
		return "", nil, err
	}
	all, err := catalog.ListGateways(ctx, s.backend)
	if err != nil {
		return "", nil, err
	}
	return id, wanAddrs(all), nil
}

// rejection describes the last follower that accepts another group.
type rejection struct {
	mu       sync.Mutex
	group    string
	gateways []string
	at       time.Time
}

// reject records that a follower accepts another group, and returns the error
// for it.
func (s *Source) reject(hello *pb.FollowHello, own string) error {
	r := &s.rejected
	r.mu.Lock()
	first := time.Since(r.at) >= rejectionTimeout
	group := hello.GetGroupId()
	r.group, r.gateways, r.at = group[:min(len(group), maxGroupID)], validAddrs(hello.GetGateways()), time.Now()
	r.mu.Unlock()
	if first {
		s.logger.Warn("a secondary refuses to follow this datacenter", "reason", s.RejectedBy())
	}
	return status.Errorf(codes.FailedPrecondition, "this server belongs to the group %s", own)
}

// accept records that a follower accepts the local group.
func (s *Source) accept() {
	s.rejected.mu.Lock()
	defer s.rejected.mu.Unlock()
	s.rejected.at = time.Time{}
}

// RejectedBy returns the reason why a secondary has refused to follow this
// datacenter within the last 30 s, with the remedy, or "".
func (s *Source) RejectedBy() string {
	r := &s.rejected
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group == "" || time.Since(r.at) >= rejectionTimeout {
		return ""
	}
	own, gateways, err := s.sourceGroup(context.Background()) // reads memory
	if err != nil {
		return ""
	}
	return fmt.Sprintf("a secondary follows another datacenter that is called %[1]s too: that one has the group id "+
		"%[2]s%[3]s, and this one has %[4]s%[5]s; stop the wrong one, or, if %[1]s was rebuilt, run for each secondary: "+
		"wanfed federation replace %[1]s --id %[4]s --datacenter DC", s.primary.cfg.DC, r.group, at(r.gateways),
		own, at(gateways))
}
