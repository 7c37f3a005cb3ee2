// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// suiteReadLimit is the p99 of reads below which the attack has no effect. The
// attackers share the processors with the servers.
const suiteReadLimit = 500 * time.Millisecond

// TestAttackSuite attacks dc1 and dc2 with the certificates of a server, a gateway,
// an operator and a client of dc3 in turn: gossip of all kinds with mutations,
// state exchanges, large federation states, writes that dc3 may not make,
// mutated and unfinished ClientHellos. Memory stays bounded, reads between
// datacenters stay fast, federated writes succeed, the members stay, and no server
// dials an address that only the attacker named.
// It runs for 15 s, or for 10 min with WANFED_CHAOS. WANFED_ATTACK_TIME changes
// that.
func TestAttackSuite(t *testing.T) {
	duration := envDuration(t, "WANFED_ATTACK_TIME", longer(10*time.Minute, 15*time.Second))
	l := newLoopback(t)
	l.log = "info"
	dc1 := l.start("dc1", "dc1")
	dc2, dc3 := l.start("dc2", "dc1", dc1.gateway.WAN), l.start("dc3", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2, dc3)
	victims := []*site{dc1, dc2}
	limits := map[*site]int{}
	for _, s := range victims {
		limits[s] = rssOf(t, s)*3/2 + attackMemory
	}
	canary := listenCanary(t)
	watch := watchMembers(t, victims)
	writes := keepWritingDocuments(t, l, dc1)
	before := readTimes(t, dc2, 50, 0)
	roles := []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway, tlsutil.RoleOperator, tlsutil.RoleClient}
	for _, role := range roles {
		ctx, cancel := context.WithTimeout(t.Context(), duration/time.Duration(len(roles)))
		var wg sync.WaitGroup
		attacks := startAttacks(ctx, t, &wg, l, victims, role)
		during := []time.Duration{}
		for ctx.Err() == nil {
			during = append(during, readTimes(t, dc2, 5, 20*time.Millisecond)...)
			for _, s := range victims {
				if rss := rssOf(t, s); rss > limits[s] {
					t.Errorf("%v: memory of %s = %d MB, want at most %d MB", role, s.dc, rss>>20, limits[s]>>20)
				}
			}
		}
		cancel()
		wg.Wait()
		old, now := percentile(before, 99), percentile(during, 99)
		t.Logf("%v: %d attacks; p99 of reads %v, before %v", role, attacks.Load(), now, old)
		if now > max(2*old, suiteReadLimit) {
			t.Errorf("%v: p99 of %d reads = %v, want at most twice %v, or %v", role, len(during), now, old, suiteReadLimit)
		}
		if attacks.Load() == 0 {
			t.Errorf("%v: no attack was made", role)
		}
		watch.check(t, fmt.Sprint(role))
	}
	watch.stop()
	watch.check(t, "end")
	writes.stop()
	if len(writes.refused) > 0 || writes.done == 0 {
		t.Errorf("%d documents written, %d refused: %v; want none refused", writes.done, len(writes.refused),
			writes.refused[:min(len(writes.refused), 3)])
	}
	if n := canary.Load(); n > 0 {
		t.Errorf("%d connections to the address that only the attacker named, want none", n)
	}
	l.federated(dc1, dc2)
}

// listenCanary counts the connections to the address in forged messages.
func listenCanary(t *testing.T) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	for _, port := range forgedPorts {
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.99:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				n.Add(1)
				c.Close()
			}
		}()
	}
	return &n
}

// documentWrites are writes of an operator of dc1.
type documentWrites struct {
	stop    func()
	done    int
	refused []error
}

func keepWritingDocuments(t *testing.T, l *loopback, s *site) *documentWrites {
	t.Helper()
	c := pb.NewResourceServiceClient(l.call(t, s.server.Addr, "server."+s.dc+".wanfed", tlsutil.RoleOperator, "op", s.dc))
	ctx, cancel := context.WithCancel(t.Context())
	w := &documentWrites{}
	ended := make(chan struct{})
	w.stop = func() { cancel(); <-ended }
	t.Cleanup(w.stop)
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			data, err := anypb.New(&pb.Document{Content: structpb.NewNumberValue(float64(i))})
			if err == nil {
				_, err = c.Write(ctx, &pb.WriteRequest{Resource: &pb.Resource{
					Id: &pb.ID{Type: document.Type, Name: fmt.Sprintf("d%d", i%100)}, Data: data,
				}})
			}
			switch {
			case err == nil:
				w.done++
			case ctx.Err() == nil && status.Code(err) != codes.Aborted:
				w.refused = append(w.refused, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return w
}

// readTimes reads federated data of dc1 n times at s, and returns the durations.
func readTimes(t *testing.T, s *site, n int, pause time.Duration) (out []time.Duration) {
	t.Helper()
	for range n {
		start := time.Now()
		resp, err := http.Get(s.server.HTTP + "/v1/catalog/datacenters?dc=dc1")
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				err = errors.New(resp.Status)
			}
		}
		if err != nil {
			t.Errorf("read of dc1 at %s = %v, want nil", s.dc, err)
		}
		out = append(out, time.Since(start))
		time.Sleep(pause) // not a wait: the pace of the reader
	}
	return out
}

func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)*p/100, len(all)-1)]
}

// attackModes are the modes of sendPackets.
var attackModes = []string{"bomb", "event", "event names", "intents", "prune", "leave", "clock", "large packets", "alive",
	"address", "suspect", "dead", "left", "leave and left", "ping", "random", "invented"}

// startAttacks attacks victims with a certificate of dc3 until ctx ends. The result
// counts the attacks.
func startAttacks(ctx context.Context, t *testing.T, wg *sync.WaitGroup, l *loopback, victims []*site,
	role tlsutil.Role) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	run := func(f func(i int)) {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				f(i)
				n.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	id := l.ca.Identity(t, role, "srv1", "dc3")
	for _, s := range victims {
		sni := "srv1.server." + s.dc + ".wanfed"
		for i, addr := range []string{s.server.Addr, s.gateway.WAN} {
			run(func(k int) { // gossip, with a mutation of each third message
				mode := attackModes[(k+i)%len(attackModes)]
				c, err := dial(ctx, addr, id.ClientConfig(sni, wanfed.ProtoGossip))
				if err != nil {
					return
				}
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
				sendPackets(short, &mutatingConn{Conn: c}, mode, func() { time.Sleep(200 * time.Microsecond) })
			})
		}
		run(func(int) {
			c, err := dial(ctx, s.gateway.WAN, id.ClientConfig(sni, wanfed.ProtoStream))
			if err != nil {
				return
			}
			defer c.Close()
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			defer context.AfterFunc(short, func() { c.Close() })()
			sendStates(short, c, "", func() { time.Sleep(5 * time.Millisecond) })
		})
		cc := l.call(t, s.gateway.WAN, "server."+s.dc+".wanfed", role, "srv1", "dc3")
		federation, resources := pb.NewFederationServiceClient(cc), pb.NewResourceServiceClient(cc)
		run(func(k int) { // all calls fail, or change only the state of dc3
			call, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			dc := []string{"dc3", "dc1", "dc2"}[k%3]
			_, _ = federation.Apply(call, &pb.ApplyFederationStateRequest{
				Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: largeAttackState(dc, k),
			})
			_, _ = federation.Apply(call, &pb.ApplyFederationStateRequest{
				Op: pb.ApplyFederationStateRequest_OP_DELETE, State: &pb.FederationState{Datacenter: "dc2"}, Force: true,
			})
			data, _ := anypb.New(&pb.KVEntry{Value: randomBytes(100)})
			if r, err := resources.Write(call, &pb.WriteRequest{Resource: &pb.Resource{
				Id: &pb.ID{Type: kv.EntryType, Name: "stolen"}, Data: data,
			}}); err == nil {
				t.Errorf("%v of dc3 wrote %v in %s, want a refusal", role, r.GetResource().GetId(), s.dc)
			}
		})
		run(func(int) { mutateHello(ctx, s.gateway.WAN, id.ClientConfig(sni, "h2")) })
		run(func(int) { mutateHello(ctx, s.server.Addr, id.ClientConfig(sni, "h2")) })
	}
	return &n
}

// largeAttackState returns a state of 200 gateways, which changes with k.
func largeAttackState(dc string, k int) *pb.FederationState {
	s := &pb.FederationState{Datacenter: dc}
	for i := range 200 {
		node := fmt.Sprintf("g%d", i)
		s.MeshGateways = append(s.MeshGateways, &pb.MeshGateway{
			Node: &pb.Node{Node: node, Datacenter: dc, Address: "127.0.0.3"},
			Service: &pb.Service{Node: node, Kind: "mesh-gateway", Id: node, Service: "mesh-gateway",
				Meta: map[string]string{"p": fmt.Sprintf("%0800d", k)}, TaggedAddresses: map[string]*pb.Address{
					"wan": {Address: "224.0.0.3", Port: uint32(20000 + i)},
				}},
		})
	}
	return s
}

// mutatingConn changes a byte of each third write, after the frame's head.
type mutatingConn struct {
	net.Conn
	writes int
}

func (c *mutatingConn) Write(b []byte) (int, error) {
	const head = 10 // of a frame for srv1
	if c.writes++; c.writes%3 == 0 && len(b) > head {
		b = slices.Clone(b)
		b[head+rand.IntN(len(b)-head)] ^= byte(1 + rand.IntN(255))
	}
	return c.Conn.Write(b)
}

// mutateHello sends a ClientHello with a few changed bytes, or a part of one, and
// closes the connection.
func mutateHello(ctx context.Context, addr string, cfg *tls.Config) {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
	_ = tls.Client(helloConn{c}, cfg).HandshakeContext(ctx) // fails
	time.Sleep(10 * time.Millisecond)                       // the pace of the attack
}

// helloConn mutates or cuts what is written.
type helloConn struct{ net.Conn }

func (c helloConn) Write(b []byte) (int, error) {
	out := slices.Clone(b)
	for range rand.IntN(3) {
		out[rand.IntN(len(out))] ^= byte(1 + rand.IntN(255))
	}
	if rand.IntN(2) == 0 {
		out = out[:1+rand.IntN(len(out))]
	}
	if _, err := c.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}
