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

// TagGateways is the WAN pool tag by which every server tells the WAN addresses of its datacenter's healthy gateways, joined
// by commas. Gossip carries it to whoever can be reached in any way, also when the record cannot travel: when all gateways of
// the primary have new addresses, say, its servers still dial out, and with the first exchange the others learn the new
// ones. It is a hint, not a record: it only says where to dial, and TLS decides who is there.
const TagGateways = "gw"

// maxHint bounds the tag in bytes: a member's tags have 512 together.
const maxHint = 160

// hintOf makes the tag's value of as many gateways as fit.
func hintOf(own []*pb.MeshGateway) string {
	var b strings.Builder
	for _, addr := range addrs(slices.DeleteFunc(slices.Clone(own), unhealthy), catalog.TagWAN) {
		if b.Len()+1+len(addr) > maxHint {
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

// parseHint reads the tag's value; what is no address in it is left out.
func parseHint(s string) []string {
	if len(s) > maxHint {
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

// hinted collects what members say of their datacenters' gateways. Its zero value is ready.
type hinted struct {
	read map[string]hint     // by member
	out  map[string][]string // of the last collect
}

// hint is a tag's value, read.
type hint struct {
	tag   string
	addrs []string
}

// collect lists what members of other datacenters say, by datacenter; the result is valid until the next call, but the lists in it
// stay. A member that is not alive may only be cut off, so it is heard too as long as its datacenter is one of the
// federation: the primary, or one that has a state, as stated says. Once the state of a dead one is deleted, nobody dials
// it any more.
func (h *hinted) collect(members []gossip.Member, ownDC, primary string, stated func(dc string) bool) map[string][]string {
	if h.out == nil || len(h.read) > 2*len(members) { // members that are gone
		h.read, h.out = map[string]hint{}, map[string][]string{}
	}
	clear(h.out)
	for _, m := range members {
		_, dc, err := SplitWANName(m.Name)
		if err != nil || dc == ownDC || m.Status == gossip.StatusLeft || !m.Alive() && dc != primary && !stated(dc) {
			continue
		}
		tag := m.Tags[TagGateways]
		if tag == "" {
			continue
		}
		r := h.read[m.Name]
		if r.tag != tag {
			r = hint{tag, slices.Clip(parseHint(tag))}
			h.read[m.Name] = r
		}
		if told := h.out[dc]; len(told) == 0 && len(r.addrs) > 0 {
			h.out[dc] = r.addrs
		} else if len(r.addrs) > 0 {
			h.out[dc] = union(slices.Clip(told), r.addrs)
		}
	}
	return h.out
}

// GatewayTaggerConfig configures a Hinter.
type GatewayTaggerConfig struct {
	Backend resource.Backend
	WAN     *gossip.Pool
	// Tags are this server's other tags.
	Tags   map[string]string
	Logger *slog.Logger
}

// Hinter keeps this server's TagGateways true.
type GatewayTagger struct{ cfg GatewayTaggerConfig }

// NewGatewayTagger checks cfg.
func NewGatewayTagger(cfg GatewayTaggerConfig) (*GatewayTagger, error) {
	if cfg.Backend == nil || cfg.WAN == nil || cfg.Logger == nil {
		return nil, errors.New("federation: Backend, WAN and Logger are required")
	}
	return &GatewayTagger{cfg: cfg}, nil
}

// Run sets the tag after every change of the own gateways, until ctx ends. Without a healthy gateway the last value stays:
// an old address is better than none.
func (h *GatewayTagger) Run(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, typ := range []*pb.Type{catalog.NodeType, catalog.ServiceType, catalog.CheckType} {
		wg.Go(func() { resource.Notify(ctx, h.cfg.Backend, resource.Query{Type: typ}, wake) })
	}
	told := ""
	for {
		own, err := catalog.ListGateways(ctx, h.cfg.Backend)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("gateway hints: %w", err)
		}
		if hint := hintOf(own); err == nil && hint != "" && hint != told {
			tags := maps.Clone(h.cfg.Tags)
			tags[TagGateways] = hint
			if err := h.cfg.WAN.SetTags(ctx, tags); err != nil && ctx.Err() == nil {
				// It is set; only its first broadcast was not finished in time. Exchanges of state carry it on.
				h.cfg.Logger.Debug("telling the WAN pool the own gateways", "err", err)
			}
			told = hint
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}
