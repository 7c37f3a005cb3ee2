// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/netaddr"
)

const (
	// announceInterval is the interval between two claims of a server of the
	// primary.
	announceInterval = 5 * time.Second
	// maxAnnounced is the number of datacenters that receive each claim. Two
	// clones have the same list of datacenters, and are found if one datacenter
	// receives the claims of both.
	maxAnnounced = 3
	// announceTimeout limits one request.
	announceTimeout = 2 * time.Second
	// announceRetry is the time for which the next datacenter replaces one that
	// did not respond, if there is one. It is longer than the idle timeout of a
	// connection, which otherwise would be dialed all the time.
	announceRetry = 5 * time.Minute
)

// announcedTo is the state of a datacenter that receives claims.
type announcedTo struct {
	nonce string    // of the last response
	retry time.Time // other datacenters are preferred until this time
}

// announce sends the claim of a server of the primary to a few other datacenters,
// and records the clones that they report. It returns the time to the next call,
// and whether any of them has responded.
func (c *Claimant) announce(ctx context.Context, id string) (pause time.Duration, responded bool) {
	pause = backoff.Jitter(announceInterval)
	req, err := c.request(ctx, id)
	if err != nil {
		return pause, false
	}
	var clones []*pb.Claimant
	for _, dc := range c.nextAnnounced(time.Now()) {
		resp, err := c.announceTo(ctx, dc, req)
		if err != nil {
			c.cfg.Logger.Debug("cannot send the claim of this server", "peer_dc", dc, "err", err)
			continue
		}
		responded = true
		if resp.Pending {
			pause = pendingInterval
		}
		for _, r := range resp.Rivals {
			known := slices.ContainsFunc(clones, func(o *pb.Claimant) bool { return o.Instance == r.Instance })
			if !known && validClaimant(r) && len(clones) < maxClaims {
				clones = append(clones, r)
			}
		}
	}
	if !responded { // clones that were reported before may still run
		return pause, false
	}
	var processes []*pb.Claimant
	text := ""
	if len(clones) > 0 {
		own := &pb.Claimant{ServerAddress: c.cfg.Address, Gateways: req.Gateways}
		processes = append([]*pb.Claimant{own}, clones...)
		text = DescribeClones(WANName(c.cfg.Node, c.cfg.DC), processes)
	}
	c.update(func(s *ClaimState) { s.Rivals, s.Clones, s.Processes = clones, text, processes })
	return pause, true
}

// nextAnnounced returns the datacenters that receive the next claim.
func (c *Claimant) nextAnnounced(now time.Time) []string {
	all := c.cfg.Datacenters()
	maps.DeleteFunc(c.peers, func(dc string, _ *announcedTo) bool { return !slices.Contains(all, dc) })
	failed := func(dc string) int {
		if p := c.peers[dc]; p != nil && now.Before(p.retry) {
			return 1
		}
		return 0
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(failed(a), failed(b)), strings.Compare(a, b))
	})
	return all[:min(len(all), maxAnnounced)]
}

// announceTo sends a claim to one datacenter.
func (c *Claimant) announceTo(ctx context.Context, dc string, req *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	p := c.peers[dc]
	if p == nil {
		p = &announcedTo{}
		c.peers[dc] = p
	}
	req = proto.CloneOf(req)
	req.Nonce = p.nonce
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	resp, err := c.cfg.Client(dc).Claim(ctx, req)
	if err != nil {
		p.retry = time.Now().Add(announceRetry)
		return nil, err
	}
	p.nonce, p.retry = resp.Nonce[:min(len(resp.Nonce), maxClaimText)], time.Time{}
	return resp, nil
}

// validClaimant reports whether a peer has sent valid addresses.
func validClaimant(c *pb.Claimant) bool {
	addrs := append([]string{c.ServerAddress}, c.Gateways...)
	return len(c.Gateways) <= maxClaimGateways && !slices.ContainsFunc(addrs, func(addr string) bool {
		return len(addr) > maxClaimText || netaddr.CheckHostPort(addr) != nil
	})
}
