// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/tlsutil"
)

// newWriter returns a Writer over b, asked by an operator, and its View.
func newWriter(t *testing.T, b resource.Backend, who *tlsutil.Peer) (*Writer, *View) {
	t.Helper()
	reg := resource.NewRegistry()
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: reg, DC: "dc1", Primary: func() bool { return false },
		Peer: func(context.Context) (tlsutil.Peer, error) { return *who, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	v := NewView(b)
	return NewWriter(svc, v), v
}

const ttl = 20 * time.Second

func operator() *tlsutil.Peer {
	return &tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "joe"}
}

// reporting runs f while a Reports runs, in fake time, on a catalog with service web of node n1, which has a check with a TTL of
// ttl and goes after two minutes.
func reporting(t *testing.T, f func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *counting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		mem := memory.New()
		defer mem.Close()
		store := &counting{Backend: mem}
		w, v := newWriter(t, store, operator())
		ctx, cancel := context.WithCancel(t.Context())
		err := w.Register(ctx, Registration{
			Node:    &pb.Node{Node: "n1", Address: "192.0.2.1"},
			Service: &pb.Service{Node: "n1", Id: "web-1", Service: "web"},
			Checks: []*pb.Check{{
				Node: "n1", CheckId: "service:web-1", Status: StatusCritical, ServiceId: "web-1", Type: TypeTTL,
				Ttl: durationpb.New(ttl), DeregisterAfter: durationpb.New(2 * time.Minute),
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		store.commits = 0
		p, err := NewTTLMonitor(store, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing}); !errors.Is(err, resource.ErrNotLeader) {
			t.Errorf("a report before Run: %v", err)
		}
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		f(ctx, t, p, v, store)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// check returns the one check, nil if its service is gone.
func check(t *testing.T, v *View) *Check {
	t.Helper()
	s, err := v.At(t.Context(), resource.Strong)
	if err != nil {
		t.Fatal(err)
	}
	return s.Node("n1").Check("service:web-1")
}

func wantCheck(t *testing.T, v *View, status, output string) {
	t.Helper()
	synctest.Wait()
	if c := check(t, v); c == nil || c.Status != status || c.Output != output {
		t.Errorf("check is %v, want %s %q", c, status, output)
	}
}

func TestReports(t *testing.T) {
	reporting(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *counting) {
		report := func(status, output string) {
			t.Helper()
			if err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: status, Output: output}); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			report(StatusPassing, "fine")
			time.Sleep(3 * time.Second)
		}
		wantCheck(t, v, StatusPassing, "fine")
		if n := store.count(); n != 1 {
			t.Errorf("100 reports of the same made %d writes, want 1", n)
		}
		report(StatusPassing, "at first")
		report(StatusPassing, "busy")
		wantCheck(t, v, StatusPassing, "at first")
		time.Sleep(OutputInterval)
		wantCheck(t, v, StatusPassing, "busy") // later, by itself
		report(StatusWarning, "so so")
		wantCheck(t, v, StatusWarning, "so so")
		time.Sleep(ttl - 1)
		wantCheck(t, v, StatusWarning, "so so")
		time.Sleep(time.Nanosecond)
		wantCheck(t, v, StatusCritical, TTLExpiredOutput)
		report(StatusPassing, "back")
		wantCheck(t, v, StatusPassing, "back")

		time.Sleep(ttl + 2*time.Minute - 1)
		wantCheck(t, v, StatusCritical, TTLExpiredOutput)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if c := check(t, v); c != nil {
			t.Errorf("its service is still there: %v", c)
		}
		err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing})
		if !errors.Is(err, ErrNoCheck) {
			t.Errorf("a report of a deleted check: %v", err)
		}
	})
}

// A new leader gives a check its whole TTL, and a service that is critical its whole time.
func TestReportsOfANewLeader(t *testing.T) {
	reporting(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *counting) {
		if err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl - time.Second)
		next, err := NewTTLMonitor(store, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		// The old one stops, as a server that lost leadership.
		nctx, stop := context.WithCancel(ctx)
		done := make(chan error)
		go func() { done <- next.Run(nctx) }()
		synctest.Wait()
		p.mu.Lock()
		clear(p.checks)
		p.mu.Unlock()
		time.Sleep(ttl - 1)
		wantCheck(t, v, StatusPassing, "")
		time.Sleep(time.Nanosecond)
		wantCheck(t, v, StatusCritical, TTLExpiredOutput)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestReportRefuses(t *testing.T) {
	reporting(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *counting) {
		for want, rep := range map[error]CheckUpdate{
			resource.ErrInvalid: {Node: "n1", CheckID: "service:web-1", Status: "fine"},
			ErrNoCheck:          {Node: "n1", CheckID: "web-1", Status: StatusPassing},
		} {
			if err := p.Update(ctx, rep); !errors.Is(err, want) {
				t.Errorf("%+v: %v, want %v", rep, err, want)
			}
		}
	})
}

func TestCut(t *testing.T) {
	for _, test := range []struct {
		s    string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aéb", 2, "a"}, {"aéb", 3, "aé"}, {"\x80\x80", 1, ""}} {
		if got := truncate(test.s, test.n); got != test.want {
			t.Errorf("truncate(%q, %d) = %q, want %q", test.s, test.n, got, test.want)
		}
	}
}
