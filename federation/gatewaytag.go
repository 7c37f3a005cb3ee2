// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/resource"
)

// TagGateways is the WAN pool tag with the WAN addresses of the healthy gateways
// of a server's datacenter, separated by commas. Gossip carries it to every
// reachable member, even when the federation state cannot travel. For example,
// when all gateways of the primary get new addresses, its servers can still dial
// out, and the first state exchange transfers the new addresses. The tag is only
// a hint where to dial: TLS authenticates the peer.
const TagGateways = "gw"

// maxGatewayTag limits the tag in bytes. All tags of a member together have at
// most 512 bytes.
const maxGatewayTag = 160

// formatGatewayTag returns a tag with as many gateways as fit.
func formatGatewayTag(gateways []*pb.MeshGateway) string {
	var b strings.Builder
	for _, addr := range candidatesOf(slices.DeleteFunc(slices.Clone(gateways), unhealthy), catalog.TagWAN, 0, never).addrs() {
		if b.Len()+1+len(addr) > maxGatewayTag {
			break
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(addr)
	}
	return b.String()
}

func unhealthy(g *pb.MeshGateway) bool { return !catalog.Healthy(g) }

// parseGatewayTag returns the valid addresses in a tag.
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

// union appends the elements of b that a does not contain.
func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}

// tagReader collects the gateway tags of members. It caches parsed tags. Its zero
// value is ready.
type tagReader struct {
	parsed map[string]parsedTag // by member
	out    map[string][]string  // result of the last collect
}

type parsedTag struct {
	tag   string
	addrs []string
}

// collect returns the addresses in the tags of other datacenters' members, by
// datacenter. The map is valid until the next call. Its slices are immutable.
//
// A failed member may only be partitioned. Its tag also counts as long as its
// datacenter is part of the federation: the datacenter is the primary, or
// state returns a federation state. After the state of a dead datacenter is
// deleted, its addresses are not dialed any more. The tag of a member of another
// Raft group than that of the state does not count.
func (r *tagReader) collect(
	members []gossip.Member, localDC, primary string, state func(dc string) *stateGateways,
) map[string][]string {
	if r.out == nil || len(r.parsed) > 2*len(members) { // drops members that are gone
		r.parsed, r.out = map[string]parsedTag{}, map[string][]string{}
	}
	clear(r.out)
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
		if addrs := r.out[dc]; len(addrs) == 0 && len(p.addrs) > 0 {
			r.out[dc] = p.addrs
		} else if len(p.addrs) > 0 {
			r.out[dc] = union(slices.Clip(addrs), p.addrs)
		}
	}
	return r.out
}

// GatewayTaggerConfig configures a GatewayTagger. All fields but Tags are
// required.
type GatewayTaggerConfig struct {
	Backend resource.Backend
	WAN     *gossip.Pool
	// Tags are the other tags of this server.
	Tags   map[string]string
	Logger *slog.Logger
}

// GatewayTagger keeps TagGateways of this server up to date.
type GatewayTagger struct{ cfg GatewayTaggerConfig }

// NewGatewayTagger checks cfg.
func NewGatewayTagger(cfg GatewayTaggerConfig) (*GatewayTagger, error) {
	if cfg.Backend == nil || cfg.WAN == nil || cfg.Logger == nil {
		return nil, errors.New("federation: Backend, WAN and Logger are required")
	}
	return &GatewayTagger{cfg: cfg}, nil
}

// Run sets the tag after every change of the local gateways, until ctx ends.
// Without a healthy gateway the tag keeps its last value, because an old address
// may still work.
func (g *GatewayTagger) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, typ := range []*pb.Type{GroupType, catalog.NodeType, catalog.ServiceType, catalog.CheckType} {
		wg.Go(func() { resource.Notify(ctx, g.cfg.Backend, resource.Query{Type: typ}, wake) })
	}
	published := g.cfg.Tags
	for {
		gateways, err := catalog.ListGateways(ctx, g.cfg.Backend)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("gateway tag: %w", err)
		}
		id, err := GroupID(ctx, g.cfg.Backend)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("gateway tag: %w", err)
		}
		tags := maps.Clone(g.cfg.Tags)
		if tag := formatGatewayTag(gateways); tag != "" {
			tags[TagGateways] = tag
		} else if old, ok := published[TagGateways]; ok {
			tags[TagGateways] = old
		}
		if id != "" {
			tags[TagGroup] = id
		}
		if err == nil && !maps.Equal(tags, published) {
			if err := g.cfg.WAN.SetTags(ctx, tags); err != nil && ctx.Err() == nil {
				// The tag is set. Only its broadcast timed out. State exchanges
				// carry the tag to other members.
				g.cfg.Logger.Debug("cannot broadcast the gateway tag", "err", err)
			}
			published = tags
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}
