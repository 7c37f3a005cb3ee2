// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// readPace is the time between two reads of TestAttackSuite.
const readPace = 20 * time.Millisecond

// readFloor is the least limit of the p99 of reads. In the short variant, about 100
// reads are made before an attack, and one wait of the servers for a processor
// decides: while other programs kept 30 processes runnable, the server of dc1 used
// 25 % of one processor, its threads waited six times as long, and the p99 was
// 114 ms without an attack and between 119 and 758 ms during the attacks.
func readFloor() time.Duration { return longer(0, 500*time.Millisecond) }

// TestAttackSuite attacks dc1 and dc2 with the certificates of a server, a gateway,
// an operator and a client of dc3 in turn: gossip of all kinds with mutations,
// state exchanges, large federation states, writes that dc3 may not make,
// withdrawals of consents, mutated, odd and unfinished ClientHellos, PROXY headers,
// and certificates that expire within seconds. Memory stays bounded, reads between
// datacenters stay fast, federated writes succeed, the members stay, and no server
// dials an address that only the attacker named.
// It attacks in all ways at once for 12 s, or with WANFED_CHAOS for 10 min, and then
// for as long in one way after the other. WANFED_ATTACK_TIME changes these times.
//
// The p99 of reads is checked with one attack at a time. All at once is not checked
// with WANFED_CHAOS, only logged: on two processors, which the attacker also uses, it
// was 2.2 to 3.9 times as long, and 1.5 to 1.9 times during the control, the same attack
// on another federation.
func TestAttackSuite(t *testing.T) {
	if os.Getenv(attackerEnv) != "" {
		runAttacker(t)
		return
	}
	duration := envDuration(t, "WANFED_ATTACK_TIME", longer(10*time.Minute, 12*time.Second))
	l := newLoopback(t)
	l.log = "info"
	l.ca = tlstest.NewCAFrom(t, tlsutil.CARequest{Now: time.Now().AddDate(0, 0, -2)}) // before expiring certificates
	dc1 := l.start("dc1", "dc1")
	dc2, dc3 := l.start("dc2", "dc1", dc1.gateway.WAN), l.start("dc3", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2, dc3)
	victims := []*site{dc1, dc2}
	var decoys []*site // of another federation
	if longer(1, 0) > 0 {
		dc4 := l.start("dc4", "dc4")
		decoys = []*site{dc4, l.start("dc5", "dc4", dc4.gateway.WAN)}
		l.federated(decoys...)
	}
	limits := map[*site]int{}
	for _, s := range victims {
		limits[s] = rssOf(t, s)*3/2 + attackMemory
	}
	canary := listenCanary(t)
	watch := watchMembers(t, victims)
	writes := keepWritingDocuments(t, l, dc1)
	roles := []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway, tlsutil.RoleOperator, tlsutil.RoleClient}
	for _, role := range roles {
		t.Run(fmt.Sprint(role), func(t *testing.T) {
			if len(decoys) > 0 {
				t.Logf("reads during the control: %s", quantiles(readsDuringControl(t, l, decoys, role, dc2)))
			}
			part := duration / time.Duration(len(roles))
			before := readsFor(t, dc2, longer(20*time.Second, 2*time.Second))
			during := attackFor(t, l, victims, limits, dc2, role, part, attackKinds...)
			if longer(1, 0) == 0 {
				checkReads(t, "all attacks", during, before)
			} else {
				t.Logf("reads with all attacks: %s; without: %s", quantiles(during), quantiles(before))
				// A machine may change its speed by half within minutes, so the times
				// without an attack are measured between the attacks.
				before, during = nil, nil
				for _, kind := range attackKinds {
					each := part / time.Duration(len(attackKinds))
					before = append(before, readsFor(t, dc2, each)...)
					reads := attackFor(t, l, victims, limits, dc2, role, each, kind)
					t.Logf("reads with %s: %s", kind, quantiles(reads))
					during = append(during, reads...)
				}
				checkReads(t, "one attack at a time", during, before)
			}
			watch.check(t, fmt.Sprint(role))
		})
	}
	watch.stop()
	watch.check(t, "end")
	writes.stop()
	t.Logf("%d documents written, %d refused", writes.done, len(writes.refused))
	if len(writes.refused) > 0 || writes.done == 0 {
		t.Errorf("%d documents written, %d refused: %v; want none refused", writes.done, len(writes.refused),
			writes.refused[:min(len(writes.refused), 3)])
	}
	n := canary.Load()
	t.Logf("%d connections to the address that only the attacker named", n)
	if n > 0 {
		t.Errorf("%d connections to the address that only the attacker named, want none", n)
	}
	l.federated(dc1, dc2)
}

// checkReads checks the durations of reads during an attack against those without.
func checkReads(t *testing.T, attack string, during, before []time.Duration) {
	t.Helper()
	t.Logf("reads with %s: %s; without: %s", attack, quantiles(during), quantiles(before))
	limit := max(2*quantile(before, 0.99), readFloor())
	if now := quantile(during, 0.99); now > limit {
		t.Errorf("p99 of reads with %s = %v, want at most %v", attack, now, limit)
	}
}

// readsFor returns the durations of reads at s for a time.
func readsFor(t *testing.T, s *site, duration time.Duration) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	return readTimes(ctx, t, s)
}

// attackFor attacks victims for a time, and returns the durations of reads at s. The
// memory of the victims must not exceed limits.
func attackFor(t *testing.T, l *loopback, victims []*site, limits map[*site]int, s *site, role tlsutil.Role,
	duration time.Duration, kinds ...string,
) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	attacker := startAttacker(t, l, victims, role, kinds...)
	worst := watchMemory(ctx, t, victims)
	reads := readTimes(ctx, t, s)
	cancel()
	t.Logf("attacks: %s", attacker.stop(t))
	for _, v := range victims {
		rss := <-worst
		t.Logf("memory of %s: %d MB, want at most %d MB", v.dc, rss>>20, limits[v]>>20)
		if rss > limits[v] {
			t.Errorf("memory of %s = %d MB, want at most %d MB", v.dc, rss>>20, limits[v]>>20)
		}
	}
	return reads
}

// readsDuringControl attacks decoys with the same program, and returns the durations
// of reads at s. The servers of the federation of s do nothing for the attacker, but
// have the same processors.
func readsDuringControl(t *testing.T, l *loopback, decoys []*site, role tlsutil.Role, s *site) []time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	attacker := startAttacker(t, l, decoys, role, attackKinds...)
	reads := readTimes(ctx, t, s)
	t.Logf("attacks of the control: %s", attacker.stop(t))
	return reads
}

// watchMemory sends the highest memory of each site when ctx has ended.
func watchMemory(ctx context.Context, t *testing.T, sites []*site) <-chan int {
	out := make(chan int, len(sites))
	worst := make([]int, len(sites))
	go func() {
		tick := time.NewTicker(5 * readPace)
		defer tick.Stop()
		for ctx.Err() == nil {
			for i, s := range sites {
				worst[i] = max(worst[i], rssOf(t, s))
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		for _, n := range worst {
			out <- n
		}
	}()
	return out
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

// readTimes reads federated data of dc1 at s until ctx ends, and returns the
// durations.
func readTimes(ctx context.Context, t *testing.T, s *site) (out []time.Duration) {
	t.Helper()
	tick := time.NewTicker(readPace)
	defer tick.Stop()
	for ctx.Err() == nil {
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
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return out
}
