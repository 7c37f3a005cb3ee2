// SPDX-License-Identifier: MPL-2.0

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// recorder responds to calls of a batcher after a delay. Leases with an odd
// token are lost.
type recorder struct {
	delay time.Duration
	err   error

	mu       sync.Mutex
	sizes    []int
	canceled int
}

func (r *recorder) Renew(
	ctx context.Context, req *pb.RenewLeasesRequest, _ ...grpc.CallOption,
) (*pb.RenewLeasesResponse, error) {
	r.mu.Lock()
	r.sizes = append(r.sizes, len(req.Renewals))
	r.mu.Unlock()
	sleep(ctx, r.delay)
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil {
		r.canceled++
		return nil, ctx.Err()
	}
	resp := &pb.RenewLeasesResponse{}
	for i, n := range req.Renewals {
		if n.GetToken()%2 == 1 {
			resp.Lost = append(resp.Lost, uint32(i))
		}
	}
	return resp, r.err
}

func renewals(tokens ...uint64) (all []*pb.RenewLeasesRequest_Renewal) {
	for _, token := range tokens {
		all = append(all, &pb.RenewLeasesRequest_Renewal{Name: fmt.Sprint("l", token), Token: token})
	}
	return all
}

// TestBatcher_Merges makes 2000 renewals per second, at random times, for ten
// seconds. Each caller receives the results of its own leases.
func TestBatcher_Merges(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := &recorder{delay: 200 * time.Millisecond} // longer than the interval of calls
		b := &batcher{leases: r}
		var callers sync.WaitGroup
		for token := range uint64(20000) {
			callers.Go(func() {
				time.Sleep(time.Duration(rand.Int64N(int64(10 * time.Second))))
				begin := time.Now()
				lost, err := b.renew(t.Context(), renewals(2*token, token, 2*token+1))
				want := []uint32{2}
				if token%2 == 1 {
					want = []uint32{1, 2}
				}
				if !slices.Equal(lost, want) || err != nil {
					t.Errorf("renew(%d) = %v, %v, want %v, nil", token, lost, err, want)
				}
				if d := time.Since(begin); d > r.delay+batchInterval {
					t.Errorf("renew(%d) took %v, want at most %v", token, d, r.delay+batchInterval)
				}
			})
		}
		callers.Wait()
		if n := len(r.sizes); n > 101 {
			t.Errorf("calls in 10 s = %d, want at most 101", n)
		}
	})
}

func TestBatcher_BoundsCalls(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := &recorder{}
		b := &batcher{leases: r}
		var callers sync.WaitGroup
		for range 7 {
			callers.Go(func() {
				if _, err := b.renew(t.Context(), make([]*pb.RenewLeasesRequest_Renewal, maxRenewals/3)); err != nil {
					t.Errorf("renew() = %v, want nil", err)
				}
			})
		}
		callers.Wait()
		if len(r.sizes) < 3 || slices.Max(r.sizes) > maxRenewals {
			t.Errorf("renewals per call = %v, want at most %d", r.sizes, maxRenewals)
		}
	})
}

func TestBatcher_ErrorsAndCancellation(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := &recorder{delay: time.Second, err: resource.ErrNotLeader}
		b := &batcher{leases: r}
		var callers sync.WaitGroup
		renew := func(wait time.Duration, want error) {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				if _, err := b.renew(ctx, renewals(2)); !errors.Is(err, want) {
					t.Errorf("renew() = %v, want %v", err, want)
				}
			})
		}
		renew(100*time.Millisecond, context.DeadlineExceeded)
		synctest.Wait()
		renew(500*time.Millisecond, context.DeadlineExceeded) // in the second call, with the next one
		renew(time.Minute, resource.ErrNotLeader)
		callers.Wait()
		if !slices.Equal(r.sizes, []int{1, 2}) || r.canceled != 1 {
			t.Errorf("calls = %v, %d of them canceled, want [1 2], 1", r.sizes, r.canceled)
		}
		renew(time.Nanosecond, context.DeadlineExceeded)
		renew(time.Nanosecond, context.DeadlineExceeded)
		callers.Wait()
		time.Sleep(time.Minute)
	})
}

// leaderConn is a connection to the recorder.
type leaderConn struct {
	grpc.ClientConnInterface
	r *recorder
}

func (c leaderConn) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	resp, err := c.r.Renew(ctx, args.(*pb.RenewLeasesRequest))
	if err == nil {
		reply.(*pb.RenewLeasesResponse).Lost = resp.Lost
	}
	return err
}

// TestForwarder checks that one caller cannot make the renewals of others fail,
// and that the Forwarder follows the leader.
func TestForwarder(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		leaders := map[string]*recorder{"a": {}, "b": {}}
		denied := errors.New("denied")
		f := NewForwarder(func(node string) (grpc.ClientConnInterface, error) {
			if leaders[node] == nil {
				return nil, errors.New("unreachable")
			}
			return leaderConn{r: leaders[node]}, nil
		}, func(ctx context.Context, _ resource.Verb, _ *pb.Type, _ string) error {
			if ctx.Value(denied) != nil {
				return resource.ErrDenied
			}
			return nil
		})
		var callers sync.WaitGroup
		renew := func(ctx context.Context, node string, all []*pb.RenewLeasesRequest_Renewal, lost []uint32, want error) {
			callers.Go(func() {
				resp, err := f.Renew(ctx, node, &pb.RenewLeasesRequest{Renewals: all})
				if !errors.Is(resource.FromStatus(err), want) {
					t.Errorf("Renew() = %v, want %v", err, want)
				}
				if r, ok := resp.(*pb.RenewLeasesResponse); ok && !slices.Equal(r.Lost, lost) {
					t.Errorf("Renew() = lost %v, want %v", r.Lost, lost)
				}
			})
		}
		for _, node := range []string{"a", "b"} {
			renew(t.Context(), node, renewals(2, 4), nil, nil)
			synctest.Wait()
			renew(t.Context(), node, renewals(6, 7), []uint32{1}, nil)
			renew(t.Context(), node, renewals(0), nil, resource.ErrInvalid)
			renew(t.Context(), node, []*pb.RenewLeasesRequest_Renewal{{Name: "L/", Token: 2}}, nil, resource.ErrInvalid)
			renew(context.WithValue(t.Context(), denied, true), node, renewals(8), nil, resource.ErrDenied)
			renew(t.Context(), node, renewals(1, 2), []uint32{0}, nil)
			callers.Wait()
			if got := leaders[node].sizes; !slices.Equal(got, []int{2, 4}) {
				t.Errorf("calls at leader %s = %v, want [2 4]", node, got)
			}
		}
		renew(t.Context(), "c", renewals(2), nil, resource.ErrNotLeader)
		callers.Wait()
	})
}
