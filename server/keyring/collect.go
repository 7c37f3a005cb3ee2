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
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// serverTimeout bounds an exchange with one server of this datacenter.
	serverTimeout = 3 * time.Second
	// datacenterTimeout bounds an exchange with another datacenter. It is
	// longer than serverTimeout, because that datacenter exchanges keyrings
	// with its own servers first.
	datacenterTimeout = 5 * time.Second
	// unknownNode stands for the servers of a datacenter without known servers.
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
			got, err := s.collectFrom(ctx, dc)
			if err == nil {
				err = errors.New("its datacenter answered, but does not know it")
			}
			got = complete(dc, got, members, err)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, got...)
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
	ctx, cancel := context.WithTimeout(ctx, datacenterTimeout)
	defer cancel()
	return s.exchange(ctx, s.Calls.Reader(dc), &pb.ExchangeKeyringRequest{Datacenter: true})
}

// knownServers returns the servers of every known datacenter, with their status
// in the gossip pools.
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

// complete removes the keyrings from got that datacenter dc must not report. It
// adds the known servers that are missing and have not left, with the error
// err. It adds the status of each server in the gossip pools. It is pure.
func complete(dc string, got []*pb.ServerKeyring, members map[string]string, err error) []*pb.ServerKeyring {
	seen := map[string]bool{}
	got = slices.DeleteFunc(got, func(sk *pb.ServerKeyring) bool {
		bad := sk.GetDatacenter() != dc || sk.GetNode() == "" || seen[sk.GetNode()]
		seen[sk.GetNode()] = true
		return bad
	})
	for node, memberStatus := range members {
		if !seen[node] && memberStatus != gossip.StatusLeft.String() {
			got = append(got, &pb.ServerKeyring{Datacenter: dc, Node: node, Error: err.Error()})
		}
	}
	if len(got) == 0 {
		got = append(got, &pb.ServerKeyring{Datacenter: dc, Node: unknownNode, Error: err.Error()})
	}
	for _, sk := range got {
		sk.Member = cmp.Or(members[sk.Node], "unknown")
	}
	return got
}

// collectLocal exchanges keyrings with every server of this datacenter. The
// result begins with this server. The argument relayed is the keyring of
// another server. Servers of this datacenter may be able to decrypt it even if
// this server cannot.
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
			got, err := s.exchangeWithServer(ctx, m.Name, m.Addr, relayed)
			if err != nil {
				got = &pb.ServerKeyring{Datacenter: s.DC, Node: m.Name, Error: err.Error()}
			}
			add(got)
		})
	}
	if peers, err := s.RaftPeers(); err == nil {
		for _, node := range peers {
			if !seen[node] {
				add(&pb.ServerKeyring{Datacenter: s.DC, Node: node, Error: "it is not in the LAN pool of " + s.DC})
			}
		}
	}
	wg.Wait()
	out[0] = s.Self() // after the exchanges: another server may have had a newer keyring
	return out
}

// exchangeWithServer exchanges keyrings with one server of this datacenter. It
// uses a new connection, because a server that receives no gossip is not in the
// address book.
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
	got, err := s.exchange(ctx, cc, &pb.ExchangeKeyringRequest{Sealed: relayed})
	if err != nil {
		return nil, err
	}
	if len(got) != 1 || got[0].Datacenter != s.DC || node != "" && got[0].Node != node {
		return nil, fmt.Errorf("server at %s did not report its own keyring", addr)
	}
	return got[0], nil
}

// exchange sends req with this server's keyring. It accepts the keyring of the
// response if the received keyring is newer.
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
		return nil, errors.New("no answer in time")
	case status.Code(err) == codes.Unimplemented:
		return nil, errors.New("its version of wanfed has no keyring")
	default:
		return nil, errors.New(resource.ErrorText(status.Convert(err).Message()))
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
