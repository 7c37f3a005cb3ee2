// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// serverTimeout bounds an exchange with one server of this datacenter.
	serverTimeout = 3 * time.Second
	// datacenterTimeout bounds an exchange with another datacenter. That
	// datacenter may exchange keyrings with its own servers first.
	datacenterTimeout = 5 * time.Second
	// unknownNode is the node in the report about a datacenter of which no
	// server is known.
	unknownNode = "*"
)

// collect exchanges keyrings with every known server. It returns the keyring of
// each server after the exchange, ordered by datacenter and node. Each other
// datacenter receives one request and contacts its own servers. collect takes
// at most datacenterTimeout.
func (s *Service) collect(ctx context.Context) []*pb.ServerKeyring {
	var mu sync.Mutex
	var out []*pb.ServerKeyring
	var wg sync.WaitGroup
	for dc, members := range s.knownServers() {
		wg.Go(func() {
			reported, err := s.collectFrom(ctx, dc)
			if err == nil {
				err = errors.New("its datacenter responded, but does not know this server")
			}
			reported = complete(dc, reported, members, err)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, reported...)
		})
	}
	wg.Wait()
	slices.SortFunc(out, func(a, b *pb.ServerKeyring) int {
		return cmp.Or(cmp.Compare(a.Datacenter, b.Datacenter), cmp.Compare(a.Node, b.Node))
	})
	return out
}

func (s *Service) collectFrom(ctx context.Context, dc string) ([]*pb.ServerKeyring, error) {
	if dc == s.DC {
		return s.collectLocal(ctx, nil), nil
	}
	return s.exchangeWithDatacenter(ctx, dc, &pb.ExchangeKeyringRequest{Datacenter: true})
}

// knownServers returns the servers by datacenter and node, with their status in
// the gossip pools.
func (s *Service) knownServers() map[string]map[string]string {
	out := map[string]map[string]string{s.DC: {s.Node: gossip.StatusAlive.String()}}
	for dc := range s.Book.Load().Paths {
		out[dc] = map[string]string{}
	}
	for _, m := range s.WAN.Members() {
		node, dc, err := federation.SplitWANName(m.Name)
		if err != nil {
			continue
		}
		if out[dc] == nil {
			if m.Status == gossip.StatusLeft {
				continue // the datacenter was deleted from the federation
			}
			out[dc] = map[string]string{}
		}
		out[dc][node] = m.Status.String()
	}
	for _, m := range s.LAN.Members() {
		out[s.DC][m.Name] = m.Status.String()
	}
	return out
}

// complete returns the reported keyrings of datacenter dc. It removes
// duplicates and keyrings of other datacenters. It adds the known servers that
// are missing and have not left, with the error err. It sets the status of each
// server in the gossip pools from members, which has the status by node.
func complete(dc string, reported []*pb.ServerKeyring, members map[string]string, err error) []*pb.ServerKeyring {
	seen := map[string]bool{}
	reported = slices.DeleteFunc(reported, func(sk *pb.ServerKeyring) bool {
		invalid := sk.GetDatacenter() != dc || sk.GetNode() == "" || seen[sk.GetNode()]
		seen[sk.GetNode()] = true
		return invalid
	})
	add := func(node string) {
		reported = append(reported, &pb.ServerKeyring{Datacenter: dc, Node: node, Error: err.Error()})
	}
	for node, memberStatus := range members {
		if !seen[node] && memberStatus != gossip.StatusLeft.String() {
			add(node)
		}
	}
	if len(reported) == 0 {
		add(unknownNode)
	}
	for _, sk := range reported {
		sk.Member = cmp.Or(members[sk.Node], "unknown")
	}
	return reported
}

// collectLocal exchanges keyrings with every server of this datacenter. The
// result begins with this server. The argument relayed is the keyring of a
// server of another datacenter. Servers of this datacenter may be able to
// decrypt relayed even if this server cannot.
func (s *Service) collectLocal(ctx context.Context, relayed []*pb.SealedKeyring) []*pb.ServerKeyring {
	var mu sync.Mutex
	out := []*pb.ServerKeyring{nil}
	add := func(sk *pb.ServerKeyring) {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, sk)
	}
	var wg sync.WaitGroup
	seen := map[string]bool{s.Node: true}
	for _, m := range s.LAN.Members() {
		if m.Name == s.Node || m.Status == gossip.StatusLeft {
			continue
		}
		seen[m.Name] = true
		wg.Go(func() {
			sk, err := s.exchangeWithServer(ctx, m.Name, m.Addr, relayed)
			if err != nil {
				sk = &pb.ServerKeyring{Datacenter: s.DC, Node: m.Name, Error: err.Error()}
			}
			add(sk)
		})
	}
	if peers, err := s.RaftPeers(); err == nil {
		for _, node := range peers {
			if !seen[node] {
				add(&pb.ServerKeyring{Datacenter: s.DC, Node: node, Error: "not in the LAN pool of " + s.DC})
			}
		}
	}
	wg.Wait()
	out[0] = s.Self() // after the exchanges, because this server may have accepted a newer keyring
	return out
}

// exchangeWithDatacenter exchanges keyrings with any server of another
// datacenter.
func (s *Service) exchangeWithDatacenter(
	ctx context.Context, dc string, req *pb.ExchangeKeyringRequest,
) ([]*pb.ServerKeyring, error) {
	ctx, cancel := context.WithTimeout(ctx, datacenterTimeout)
	defer cancel()
	return s.exchange(ctx, s.Calls.Reader(dc), req)
}

// exchangeWithServer exchanges keyrings with one server of this datacenter. It
// uses a new connection, because a server that receives no gossip is not in the
// address book. An empty node means any server at addr.
func (s *Service) exchangeWithServer(
	ctx context.Context, node, addr string, relayed []*pb.SealedKeyring,
) (*pb.ServerKeyring, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	c, err := s.Dialer.Dial(ctx, wanfed.Target{DC: s.DC, Node: node, Addr: addr}, wanfed.ProtoGRPC)
	if err != nil {
		return nil, err
	}
	cc, closeAll, err := api.NewConnClient(c)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	reported, err := s.exchange(ctx, cc, &pb.ExchangeKeyringRequest{Sealed: relayed})
	if err != nil {
		return nil, err
	}
	if len(reported) != 1 || reported[0].Datacenter != s.DC || node != "" && reported[0].Node != node {
		return nil, fmt.Errorf("server at %s did not report its own keyring", addr)
	}
	return reported[0], nil
}

// exchange sends req with this server's keyring. It accepts the keyring in the
// response if that keyring is newer.
func (s *Service) exchange(
	ctx context.Context, cc grpc.ClientConnInterface, req *pb.ExchangeKeyringRequest,
) ([]*pb.ServerKeyring, error) {
	self := s.Self()
	req.AcceptsPlain, req.SendsPlain = self.AcceptsPlain, self.SendsPlain
	if s.Store != nil {
		r := s.Store.Current()
		req.Version, req.Fingerprints = r.Version, r.Fingerprints()
		if r.Version > 0 {
			sealed, err := r.Encrypt(nil)
			if err != nil {
				return nil, err
			}
			for _, e := range sealed {
				req.Sealed = append(req.Sealed, &pb.SealedKeyring{Fingerprint: e.Fingerprint, Box: e.Ciphertext})
			}
		}
	}
	resp, err := pb.NewKeyringServiceClient(cc).Exchange(ctx, req)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, errors.New("no response in time")
	case status.Code(err) == codes.Unimplemented:
		return nil, errors.New("its version of wanfed does not support keyrings")
	default:
		return nil, errors.New(rpctext.Plain(status.Convert(err).Message()))
	}
	if resp.Sealed != nil {
		s.accept([]*pb.SealedKeyring{resp.Sealed})
	}
	for _, sk := range resp.Servers {
		if sk.GetError() == "" && !(sk.Datacenter == s.DC && sk.Node == s.Node) {
			s.compare(sk)
		}
	}
	return resp.Servers, nil
}
