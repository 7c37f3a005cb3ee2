// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/resource"
)

// TagGateways is the name of a tag of servers in the WAN pool, the gateway tag.
// It contains the WAN addresses of the healthy gateways in the server's
// datacenter, separated by commas. Gossip carries the tag to members that
// cannot receive the federation state. For example, when all gateways of the
// primary get new addresses, servers of the primary can still dial other
// datacenters, and the first state exchange transfers the tag. The tag needs no
// authentication, because TLS authenticates each dialed peer.
const TagGateways = "gw"

// maxGatewayTag limits the gateway tag in bytes. All tags of a member together
// have at most 512 bytes.
const maxGatewayTag = 160

// formatGatewayTag returns a gateway tag with the first healthy gateways that
// fit.
func formatGatewayTag(gateways []*pb.MeshGateway) string {
	var addrs []string
	size := -1 // of the tag
	for _, c := range candidatesOf(gateways, catalog.TagWAN, 0, time.Time{}) {
		if size += 1 + len(c.addr); c.critical || size > maxGatewayTag {
			break
		}
		addrs = append(addrs, c.addr)
	}
	return strings.Join(addrs, ",")
}

// parseGatewayTag returns the valid addresses in a gateway tag.
func parseGatewayTag(s string) []string {
	if len(s) > maxGatewayTag {
		return nil
	}
	var out []string
	for addr := range strings.SplitSeq(s, ",") {
		if netaddr.CheckHostPort(addr) == nil {
			out = union(out, []string{addr})
		}
	}
	return out
}

// union appends to a the elements of b that a does not contain.
func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// tagReader collects the gateway tags of members. It caches parsed tags. Its
// zero value is ready.
type tagReader struct {
	parsed map[string]parsedTag // by member
	byDC   map[string][]string  // result of the last collect
}

type parsedTag struct {
	tag   string
	addrs []string
}

// collect returns the addresses in the gateway tags of members of other
// datacenters, by datacenter. The map is valid until the next call. Its slices
// are immutable.
//
// collect includes the tag of a failed member, which may only be partitioned,
// as long as its datacenter is the primary or state returns a federation state.
// After an operator deletes the federation state of a dead datacenter, collect
// omits its addresses. It also omits the tag of a member whose Raft group is
// not the group in the federation state.
func (r *tagReader) collect(
	members []gossip.Member, localDC, primary string, state func(dc string) *stateGateways,
) map[string][]string {
	if r.byDC == nil || len(r.parsed) > 2*len(members) { // also drops the tags of former members
		r.parsed, r.byDC = map[string]parsedTag{}, map[string][]string{}
	}
	clear(r.byDC)
	for _, m := range members {
		_, dc, err := SplitWANName(m.Name)
		if err != nil || dc == localDC || m.Status == gossip.StatusLeft {
			continue
		}
		st, group := state(dc), m.Tags[TagGroup]
		if st == nil && !m.Alive() && dc != primary || st != nil && st.group != "" && group != "" && group != st.group {
			continue
		}
		tag := m.Tags[TagGateways]
		if tag == "" {
			continue
		}
		p := r.parsed[m.Name]
		if p.tag != tag {
			p = parsedTag{tag, slices.Clip(parseGatewayTag(tag))}
			r.parsed[m.Name] = p
		}
		if addrs := r.byDC[dc]; len(addrs) == 0 && len(p.addrs) > 0 {
			r.byDC[dc] = p.addrs
		} else if len(p.addrs) > 0 {
			r.byDC[dc] = union(slices.Clip(addrs), p.addrs)
		}
	}
	return r.byDC
}

// EpochTag describes the source of TagEpoch.
type EpochTag struct {
	Type  *pb.Type      // the value may change after a change of a resource of this type
	Value func() string // "": no tag
}

// GatewayTagsConfig configures RunGatewayTags. All fields except Gateways and
// Clones are required.
type GatewayTagsConfig struct {
	Backend resource.Backend
	WAN     *gossip.Pool
	Tags    map[string]string // the other tags of this server
	Epoch   EpochTag
	// Gateways is the source of TagUnreachable. Nil: no tag.
	Gateways *catalog.Gateways
	// Clones is the source of TagClones: see Claimant.Processes. Nil: no tag.
	Clones func() (processes []*pb.Claimant, changed <-chan struct{})
	Logger *slog.Logger
}

// RunGatewayTags sets TagGateways, TagGroup, TagEpoch, TagClones and
// TagUnreachable of this server in the WAN pool after every change of their sources, until ctx ends.
// Without a healthy gateway TagGateways does not change, because an old address
// may still work.
func RunGatewayTags(ctx context.Context, cfg GatewayTagsConfig) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, typ := range []*pb.Type{GroupType, cfg.Epoch.Type, catalog.NodeType, catalog.ServiceType, catalog.CheckType} {
		wg.Go(func() { resource.Notify(ctx, cfg.Backend, resource.Query{Type: typ}, wake) })
	}
	tags := cfg.Tags
	for {
		var unreachable []*pb.UnreachableGateway
		var changed, clonesChanged <-chan struct{}
		if cfg.Gateways != nil {
			unreachable, changed = cfg.Gateways.Unreachable()
		}
		var clones []*pb.Claimant
		if cfg.Clones != nil {
			clones, clonesChanged = cfg.Clones()
		}
		next, err := cfg.nextTags(ctx, tags, clones, unreachable)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && !maps.Equal(next, tags) {
			tags = next
			if err := cfg.WAN.SetTags(ctx, tags); err != nil && ctx.Err() == nil {
				// The tags are set, but their broadcast has timed out. State
				// exchanges carry the tags to other members.
				cfg.Logger.Debug("cannot broadcast the tags", "err", err)
			}
		}
		var expired <-chan time.Time // of a report without a newer one
		if len(unreachable) > 0 {
			expired = time.After(catalog.HeartbeatTTL)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-changed:
		case <-clonesChanged:
		case <-expired:
		}
	}
}

// nextTags returns a copy of tags with the current values.
func (cfg GatewayTagsConfig) nextTags(
	ctx context.Context, tags map[string]string, clones []*pb.Claimant, unreachable []*pb.UnreachableGateway,
) (map[string]string, error) {
	gateways, err := catalog.ListGateways(ctx, cfg.Backend)
	if err != nil {
		return nil, fmt.Errorf("gateway tag: %w", err)
	}
	id, err := GroupID(ctx, cfg.Backend)
	if err != nil {
		return nil, fmt.Errorf("gateway tag: %w", err)
	}
	next := maps.Clone(tags) // the pool uses the old map
	if tag := formatGatewayTag(gateways); tag != "" {
		next[TagGateways] = tag
	}
	if id != "" {
		next[TagGroup] = id
	}
	if e := cfg.Epoch.Value(); e != "" {
		next[TagEpoch] = e
	}
	delete(next, TagClones)
	delete(next, TagUnreachable)
	if tag := formatClones(clones, roomFor(TagClones, next)); tag != "" {
		next[TagClones] = tag
	}
	if tag := formatUnreachable(unreachable, roomFor(TagUnreachable, next)); tag != "" {
		next[TagUnreachable] = tag
	}
	return next, nil
}

// roomFor returns the largest size of another tag.
func roomFor(name string, tags map[string]string) int {
	return maxTags - tagsSize(tags) - tagsSize(map[string]string{name: ""})
}
