// SPDX-License-Identifier: MPL-2.0

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
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

// Bounds of asking for rings.
const (
	askServerTimeout     = 3 * time.Second // one server of the own datacenter
	askDatacenterTimeout = 5 * time.Second // another datacenter: above the time that it takes for its own servers
)

// everyNode stands for the servers of a datacenter of which no name is known.
const everyNode = "*"

// ask exchanges rings with every server that is known, and returns what each has thereafter, by datacenter and node. Each other
// datacenter is asked once, and asks its own servers. It takes at most askDatacenterTimeout.
func (k *keyring) ask(ctx context.Context) []*pb.ServerKeyring {
	known := k.known()
	var mu sync.Mutex
	var out []*pb.ServerKeyring
	var wg sync.WaitGroup
	for dc, members := range known {
		wg.Go(func() {
			var got []*pb.ServerKeyring
			err := errors.New("its datacenter answered, but does not know it")
			if dc == k.cfg.DC {
				got = k.askHere(ctx, nil)
			} else if list, farErr := k.askFar(ctx, dc); farErr != nil {
				err = farErr
			} else {
				got = list
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

// known has the servers of every datacenter that this one knows, with their status in the pools.
func (k *keyring) known() map[string]map[string]string {
	out := map[string]map[string]string{k.cfg.DC: {k.cfg.Node: gossip.StatusAlive.String()}}
	for dc := range k.book.Load().Paths {
		out[dc] = map[string]string{}
	}
	for _, m := range k.wan.Members() {
		node, dc, err := federation.SplitWANName(m.Name)
		if err != nil {
			continue
		}
		if out[dc] == nil {
			if m.Status == gossip.StatusLeft {
				continue // its federation state was deleted: the datacenter is gone
			}
			out[dc] = map[string]string{}
		}
		out[dc][node] = m.Status.String()
	}
	for _, m := range k.lan.Members() {
		out[k.cfg.DC][m.Name] = m.Status.String()
	}
	return out
}

// complete leaves out what a datacenter must not say, adds the servers of it that are known, have not left and did not come
// up, and says what the pools know of each. It is pure.
func complete(dc string, got []*pb.ServerKeyring, members map[string]string, err error) []*pb.ServerKeyring {
	seen := map[string]bool{}
	got = slices.DeleteFunc(got, func(s *pb.ServerKeyring) bool {
		bad := s.GetDatacenter() != dc || s.GetNode() == "" || seen[s.GetNode()]
		seen[s.GetNode()] = true
		return bad
	})
	for node, is := range members {
		if !seen[node] && is != gossip.StatusLeft.String() {
			got = append(got, &pb.ServerKeyring{Datacenter: dc, Node: node, Error: err.Error()})
		}
	}
	if len(got) == 0 {
		got = append(got, &pb.ServerKeyring{Datacenter: dc, Node: everyNode, Error: err.Error()})
	}
	for _, s := range got {
		s.Member = cmp.Or(members[s.Node], "unknown")
	}
	return got
}

// askFar exchanges rings with another datacenter's servers, by way of one of them.
func (k *keyring) askFar(ctx context.Context, dc string) ([]*pb.ServerKeyring, error) {
	ctx, cancel := context.WithTimeout(ctx, askDatacenterTimeout)
	defer cancel()
	return k.exchange(ctx, k.conns.Reader(dc), &pb.ExchangeKeyringRequest{Datacenter: true})
}

// askHere exchanges rings with every server of this datacenter, and begins with what this one has. pass are boxes that
// another server sent: this one may be unable to open what the others can.
func (k *keyring) askHere(ctx context.Context, pass []*pb.SealedKeyring) []*pb.ServerKeyring {
	var mu sync.Mutex
	out := []*pb.ServerKeyring{nil}
	var wg sync.WaitGroup
	add := func(s *pb.ServerKeyring) {
		mu.Lock()
		defer mu.Unlock()
		out = append(out, s)
	}
	seen := map[string]bool{k.cfg.Node: true}
	for _, m := range k.lan.Members() {
		if m.Name == k.cfg.Node || m.Status == gossip.StatusLeft {
			continue
		}
		seen[m.Name] = true
		wg.Go(func() {
			got, err := k.askServer(ctx, m.Name, m.Addr, pass)
			if err != nil {
				got = &pb.ServerKeyring{Datacenter: k.cfg.DC, Node: m.Name, Error: err.Error()}
			}
			add(got)
		})
	}
	if peers, err := k.peers(); err == nil {
		for _, node := range peers {
			if !seen[node] {
				add(&pb.ServerKeyring{Datacenter: k.cfg.DC, Node: node, Error: "it is not in the LAN pool of " + k.cfg.DC})
			}
		}
	}
	wg.Wait()
	out[0] = k.self() // now: another may have had a newer ring
	return out
}

// askServer exchanges rings with one server of this datacenter, at an address, over a connection of its own: a server that
// hears no gossip is in no address book.
func (k *keyring) askServer(ctx context.Context, node, addr string, pass []*pb.SealedKeyring) (*pb.ServerKeyring, error) {
	ctx, cancel := context.WithTimeout(ctx, askServerTimeout)
	defer cancel()
	c, err := k.dialer.Dial(ctx, wanfed.Target{DC: k.cfg.DC, Node: node, Addr: addr}, wanfed.ProtoGRPC)
	if err != nil {
		return nil, err
	}
	cc, err := over(c)
	if err != nil {
		return nil, err
	}
	defer c.Close() // if gRPC never took it
	defer cc.Close()
	got, err := k.exchange(ctx, cc, &pb.ExchangeKeyringRequest{Sealed: pass})
	if err != nil {
		return nil, err
	}
	if len(got) != 1 || got[0].Datacenter != k.cfg.DC || node != "" && got[0].Node != node {
		return nil, fmt.Errorf("server at %s did not speak of its own keyring", addr)
	}
	return got[0], nil
}

// over makes a gRPC client of one connection.
func over(c *tls.Conn) (*grpc.ClientConn, error) {
	var taken atomic.Bool
	cc, err := api.NewGRPCClient(func(context.Context) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, errors.New("connection was lost")
		}
		return c, nil
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return cc, nil
}

// exchange fills in req, and takes from the answer what is newer.
func (k *keyring) exchange(ctx context.Context, cc grpc.ClientConnInterface, req *pb.ExchangeKeyringRequest) ([]*pb.ServerKeyring, error) {
	own := k.self()
	req.AcceptsPlain, req.SendsPlain = own.AcceptsPlain, own.SendsPlain
	if k.keys != nil {
		r := k.keys.Current()
		req.Version, req.Fingerprints = r.Version, r.Fingerprints()
		if r.Version > 0 {
			sealed, err := r.Encrypt(nil)
			if err != nil {
				return nil, err
			}
			for _, s := range sealed {
				req.Sealed = append(req.Sealed, &pb.SealedKeyring{Fingerprint: s.Fingerprint, Box: s.Ciphertext})
			}
		}
	}
	resp, err := pb.NewKeyringServiceClient(cc).Exchange(ctx, req)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, errors.New("no answer in time")
	case status.Code(err) == codes.Unimplemented:
		return nil, errors.New("its version of wanfed knows no keyring")
	default:
		return nil, errors.New(resource.ErrorText(status.Convert(err).Message()))
	}
	if resp.Sealed != nil {
		k.take([]*pb.SealedKeyring{resp.Sealed})
	}
	for _, s := range resp.Servers {
		if s.GetError() == "" && !(s.Datacenter == k.cfg.DC && s.Node == k.cfg.Node) {
			k.compare(s)
		}
	}
	return resp.Servers, nil
}
