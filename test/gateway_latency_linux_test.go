// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestGatewayLatency compares this program with the one that WANFED_OLD names,
// in turns: the time from a change of a gateway until the change is visible in
// the primary and in another secondary, without and with a delay of the WAN.
func TestGatewayLatency(t *testing.T) {
	old := os.Getenv("WANFED_OLD")
	if old == "" {
		t.Skip("WANFED_OLD does not name a program to compare with")
	}
	for _, delay := range []time.Duration{0, 40 * time.Millisecond} {
		took := map[string]map[string][]time.Duration{"old": {}, "new": {}}
		for round := range 2 {
			for _, program := range []string{"old", "new"} {
				t.Run(fmt.Sprintf("%v_%s_%d", delay, program, round+1), func(t *testing.T) {
					l := lab.NewWAN(t, wan.Link{Delay: delay})
					if program == "old" {
						l.Use(old)
					}
					for place, times := range gatewayLatency(t, l, program == "new") {
						took[program][place] = append(took[program][place], times...)
					}
				})
			}
		}
		for _, place := range []string{"primary", "secondary"} {
			for _, program := range []string{"old", "new"} {
				times := took[program][place]
				if len(times) == 0 {
					continue
				}
				slices.Sort(times)
				at := func(q float64) time.Duration {
					return times[min(int(q*float64(len(times))), len(times)-1)].Round(100 * time.Microsecond)
				}
				t.Logf("delay %v, visible in a %s, %s: p50 %v, p99 %v, maximum %v, %d changes",
					delay, place, program, at(0.5), at(0.99), at(1), len(times))
			}
		}
	}
}

// gatewayLatency changes a gateway of each of five secondaries five times. More
// changes within a minute would be delayed. With conditions, it waits until the
// conditions of all datacenters are written, because a change then writes one of
// them.
func gatewayLatency(t *testing.T, l *lab.Lab, conditions bool) map[string][]time.Duration {
	const secondaries, changes = 5, 5
	for range 1 + secondaries {
		l.Add(1, 1).Start()
	}
	var names []string
	dcs := l.Datacenters()
	for _, dc := range dcs {
		names = append(names, dc.Name)
	}
	testutil.Await(t, time.Minute, "federation", func(ctx context.Context) error {
		for _, dc := range dcs {
			if err := federated(ctx, lab.One(dc), len(names), names...); err != nil {
				return err
			}
		}
		return nil
	})
	if conditions {
		testutil.Await(t, time.Minute, "conditions", func(ctx context.Context) error {
			for _, dc := range dcs {
				for _, name := range names {
					if got, err := conditionsOf(ctx, lab.One(dc), name); err != nil || len(got) != 4 {
						return fmt.Errorf("conditions of %s in %s = %v, %w, want four", name, dc.Name, got, err)
					}
				}
			}
			return nil
		})
	}
	identity := func(role tlsutil.Role, dc, node string) *tlsutil.Identity {
		files, err := l.PKI.Issue(role, dc, node)
		if err != nil {
			t.Fatal(err)
		}
		id, err := tlsutil.Load(files, tlsutil.DefaultDomain, quiet)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}

	type seen struct{ at, dc, number string }
	var mu sync.Mutex
	times := map[seen]time.Time{}
	for _, dc := range dcs[:3] {
		cc := operatorAt(t, lab.One(dc), identity(tlsutil.RoleOperator, dc.Name, "cli"))
		stream, err := pb.NewResourceServiceClient(cc).WatchList(t.Context(),
			&pb.WatchListRequest{Type: federation.StateType})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				e, err := stream.Recv()
				if err != nil {
					return
				}
				now := time.Now()
				if s, err := resource.Decode[*pb.FederationState](e.GetUpsert().GetResource()); err == nil {
					for _, g := range s.MeshGateways {
						k := seen{dc.Name, s.Datacenter, g.GetService().GetMeta()["number"]}
						mu.Lock()
						if _, ok := times[k]; !ok {
							times[k] = now
						}
						mu.Unlock()
					}
				}
			}
		}()
	}
	gateways := map[*lab.Datacenter]pb.GatewayServiceClient{}
	for _, dc := range dcs[1:] {
		cc := operatorAt(t, lab.One(dc), identity(tlsutil.RoleGateway, dc.Name, "gw9"))
		gateways[dc] = pb.NewGatewayServiceClient(cc)
	}
	out := map[string][]time.Duration{}
	for i := range changes + 1 { // the first one is not measured: it opens the connections
		for _, dc := range dcs[1:] {
			other := dcs[1]
			if dc == other {
				other = dcs[2]
			}
			number := strconv.Itoa(i)
			start := time.Now()
			_, err := gateways[dc].Register(t.Context(), &pb.RegisterGatewayRequest{
				Lan: "10.10.0.199:8444", Wan: "198.18.200.1:8443", Meta: map[string]string{"number": number},
			})
			if err != nil {
				t.Fatal(err)
			}
			testutil.Await(t, 20*time.Second, "change "+number+" of "+dc.Name, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				primary, ok := times[seen{dcs[0].Name, dc.Name, number}]
				secondary, ok2 := times[seen{other.Name, dc.Name, number}]
				if !ok || !ok2 {
					return fmt.Errorf("visible in the primary %t, in %s %t", ok, other.Name, ok2)
				}
				if i == 0 {
					return nil
				}
				out["primary"] = append(out["primary"], primary.Sub(start))
				out["secondary"] = append(out["secondary"], secondary.Sub(start))
				return nil
			})
		}
	}
	return out
}
