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
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// newWriter returns a Writer to b that acts as *caller, which a test may change,
// and the Writer's View.
func newWriter(t *testing.T, b resource.Backend, caller *tlsutil.Peer) (*Writer, *View) {
	t.Helper()
	reg := resource.NewRegistry()
	if err := Register(reg); err != nil {
		t.Fatal(err)
	}
	svc, err := resource.NewService(resource.ServiceConfig{
		Backend: b, Registry: reg, DC: "dc1", Primary: func() bool { return false },
		Peer: func(context.Context) (tlsutil.Peer, error) { return *caller, nil },
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

// withTTLMonitor runs f in fake time while TTLMonitor.Run runs. The catalog has
// the service web of node n1, with a check that has a TTL of ttl. The service
// is deleted after two minutes as critical.
func withTTLMonitor(t *testing.T,
	f func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *countingBackend)) {
	t.Helper()
	testutil.Bubble(t, func(t *testing.T) {
		mem := resourcetest.NewStore()
		defer mem.Close()
		store := &countingBackend{Backend: mem}
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
		if err := p.Update(ctx,
			CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing}); !errors.Is(err,
			resource.ErrNotLeader) {
			t.Errorf("Update() before Run = %v, want ErrNotLeader", err)
		}
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		f(ctx, t, p, v, store)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// check returns the check, nil if its service was deleted.
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
		t.Errorf("check = %v, want %s %q", c, status, output)
	}
}

func TestTTLMonitor(t *testing.T) {
	withTTLMonitor(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *countingBackend) {
		update := func(status, output string) {
			t.Helper()
			if err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: status,
				Output: output}); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			update(StatusPassing, "fine")
			time.Sleep(3 * time.Second)
		}
		wantCheck(t, v, StatusPassing, "fine")
		if n := store.count(); n != 1 {
			t.Errorf("100 equal updates made %d commits, want 1", n)
		}
		update(StatusPassing, "at first")
		update(StatusPassing, "busy")
		wantCheck(t, v, StatusPassing, "at first")
		time.Sleep(OutputInterval)
		wantCheck(t, v, StatusPassing, "busy") // written by Run
		update(StatusWarning, "so so")
		wantCheck(t, v, StatusWarning, "so so")
		time.Sleep(ttl - 1)
		wantCheck(t, v, StatusWarning, "so so")
		time.Sleep(time.Nanosecond)
		wantCheck(t, v, StatusCritical, TTLExpiredOutput)
		update(StatusPassing, "back")
		wantCheck(t, v, StatusPassing, "back")

		time.Sleep(ttl + 2*time.Minute - 1)
		wantCheck(t, v, StatusCritical, TTLExpiredOutput)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if c := check(t, v); c != nil {
			t.Errorf("check = %v after its service's limit, want nil", c)
		}
		err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing})
		if !errors.Is(err, ErrNoCheck) {
			t.Errorf("Update() of a deleted check = %v, want ErrNoCheck", err)
		}
	})
}

// TestTTLMonitor_OutputAfterFailedWrite checks that an output whose write failed
// is written later, although no further update arrives.
func TestTTLMonitor_OutputAfterFailedWrite(t *testing.T) {
	for _, failure := range []error{resource.ErrConflict, errors.New("no quorum")} {
		withTTLMonitor(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *countingBackend) {
			for _, output := range []string{"at first", "busy"} {
				if err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing,
					Output: output}); err != nil {
					t.Fatal(err)
				}
			}
			p.mu.Lock()
			p.checks[resourceName("n1", "service:web-1")].ttl = time.Hour // does not expire during the test
			p.mu.Unlock()
			store.failNext(failure)
			time.Sleep(OutputInterval + 2*writeRetry)
			wantCheck(t, v, StatusPassing, "busy")
		})
	}
}

// TestTTLMonitor_NewLeader: a new leader gives each check its full TTL.
func TestTTLMonitor_NewLeader(t *testing.T) {
	withTTLMonitor(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *countingBackend) {
		if err := p.Update(ctx, CheckUpdate{Node: "n1", CheckID: "service:web-1", Status: StatusPassing}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl - time.Second)
		next, err := NewTTLMonitor(store, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		// The first monitor loses its deadlines, as on a server that lost
		// leadership. Only the new monitor can then write the check.
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
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func TestUpdate_Refuses(t *testing.T) {
	withTTLMonitor(t, func(ctx context.Context, t *testing.T, p *TTLMonitor, v *View, store *countingBackend) {
		for want, u := range map[error]CheckUpdate{
			resource.ErrInvalid: {Node: "n1", CheckID: "service:web-1", Status: "fine"},
			ErrNoCheck:          {Node: "n1", CheckID: "web-1", Status: StatusPassing},
		} {
			if err := p.Update(ctx, u); !errors.Is(err, want) {
				t.Errorf("Update(%+v) = %v, want %v", u, err, want)
			}
		}
	})
}

func TestTruncate(t *testing.T) {
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
