// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// One datacenter writes as much as it can. It is refused after the burst, with
// the time to wait, and then gets the rate. Other datacenters are not affected.
func TestApplyLimit(t *testing.T) {
	var l applyLimit
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	total := 0
	for range 100 {
		if l.take("dc3", maxStateSize, now) == nil {
			total += maxStateSize
		}
	}
	if total != applyBurst {
		t.Errorf("accepted %d bytes at once, want %d", total, applyBurst)
	}
	err := l.take("dc3", maxStateSize, now)
	if err == nil || !strings.Contains(err.Error(), "servers of dc3 write too many federation states") ||
		!strings.Contains(err.Error(), "retry in 9s") {
		t.Errorf("take() after the burst = %v, want an error with the time to wait, 9s", err)
	}
	if err := l.take("dc2", maxStateSize, now); err != nil {
		t.Errorf("take() of another datacenter = %v, want nil", err)
	}
	if err := l.take("dc3", maxStateSize, now.Add(9*time.Second)); err != nil {
		t.Errorf("take() after the time to wait = %v, want nil", err)
	}
	total = 0
	for i := range 1000 {
		if l.take("dc3", maxStateSize, now.Add(time.Duration(10+i)*time.Second)) == nil {
			total += maxStateSize
		}
	}
	if want := 1000 * applyRate; total > want+maxStateSize || total < want-2*maxStateSize {
		t.Errorf("accepted %d bytes in 1000 s, want about %d", total, want)
	}
}

// The rate of small states is limited too.
func TestApplyLimit_SmallStates(t *testing.T) {
	var l applyLimit
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	accepted := 0
	for range 2 * applyBurst / applyCost {
		if l.take("dc3", 10, now) == nil {
			accepted++
		}
	}
	if want := applyBurst / applyCost; accepted != want {
		t.Errorf("accepted %d small states at once, want %d", accepted, want)
	}
	accepted = 0
	for i := range 10_000 {
		if l.take("dc3", 10, now.Add(time.Duration(i)*time.Millisecond)) == nil {
			accepted++
		}
	}
	if want := 10 * applyRate / applyCost; accepted < want-1 || accepted > want {
		t.Errorf("accepted %d small states in 10 s, want about %d", accepted, want)
	}
}

// largeState returns a state of dc3 of about size bytes.
func largeState(size, variant int) *pb.FederationState {
	s := &pb.FederationState{Datacenter: "dc3"}
	for i := range 300 {
		gw := meshGateway("dc3", fmt.Sprintf("gw%d", i), "10.0.0.3", "198.51.100.3", catalog.StatusPassing)
		gw.Service.Meta = map[string]string{"p": strings.Repeat(string(rune('a'+variant%26)), size/300-150)}
		s.MeshGateways = append(s.MeshGateways, gw)
	}
	return s
}

// A server of dc3 writes large states in quick succession. It is the attack
// program "apply". Only the burst is accepted, and servers of dc2 still write.
func TestService_ApplyLimit(t *testing.T) {
	store := resourcetest.NewStore()
	t.Cleanup(func() { store.Close() })
	peer := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"}
	s, err := NewService(ServiceConfig{
		Backend: store, DC: "dc1", PrimaryDC: "dc1", Alive: func(string) bool { return true },
		Peer:    func(context.Context) (tlsutil.Peer, error) { return peer, nil },
		Decide:  func(context.Context, resource.Access) error { return resource.ErrDenied },
		Connect: func(string) (pb.FederationServiceClient, error) { return nil, errors.New("no connection") },
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(state *pb.FederationState) error {
		_, err := s.Apply(t.Context(), &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: state,
		})
		return err
	}
	if err := apply(largeState(300<<10, 0)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Apply() of 300 KiB = %v, want InvalidArgument", err)
	}
	accepted := 0
	for i := range 100 {
		if err = apply(largeState(200<<10, i)); err == nil {
			accepted++
		}
	}
	if accepted < 10 || accepted > 22 || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%d of 100 states of about 200 KiB accepted, the last %v; want about 20, and ResourceExhausted", accepted, err)
	}
	peer.DC = "dc2"
	if err := apply(&pb.FederationState{Datacenter: "dc2"}); err != nil {
		t.Errorf("Apply() of another datacenter = %v, want nil", err)
	}
}
