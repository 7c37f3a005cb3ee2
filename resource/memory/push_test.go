// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// pushed is a Push that runs.
type pushed struct {
	*watch
	cancel context.CancelFunc
	events chan *pb.WatchEvent // has room for all that a test sends
	err    chan error
	block  atomic.Pointer[chan struct{}] // send waits for this
}

func startPush(t testing.TB, s *Store) *pushed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &pushed{watch: open(t, s), cancel: cancel, events: make(chan *pb.WatchEvent, 1000), err: make(chan error, 1)}
	t.Cleanup(cancel)
	go func() {
		p.err <- p.Push(ctx, func(ev *pb.WatchEvent) error {
			if b := p.block.Load(); b != nil {
				<-*b
			}
			p.events <- ev
			return nil
		})
	}()
	return p
}

// TestPushEncodes: what Push sends is encoded as what Next gives, and what came after the snapshot is the same for all.
func TestPushEncodes(t *testing.T) {
	s := New()
	defer s.Close()
	put(t, s, "a")
	plain, one, two := open(t, s), startPush(t, s), startPush(t, s)
	for _, p := range []*pushed{one, two} { // their snapshots
		<-p.events
	}
	put(t, s, "b")
	if _, err := s.Commit(t.Context(), resource.RemoveOp(resource.ID(testType, "a"), "")); err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		want, err := plain.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := []*pb.WatchEvent{<-one.events, <-two.events}
		for _, ev := range got {
			b, err := proto.Marshal(ev)
			if err != nil {
				t.Fatal(err)
			}
			back := new(pb.WatchEvent)
			if err := proto.Unmarshal(b, back); err != nil || !proto.Equal(back, want) {
				t.Errorf("event %d: %v, %v; want %v", n, back, err, want)
			}
		}
		if n >= 1 && got[0] != got[1] {
			t.Errorf("event %d was encoded twice", n)
		}
	}
}

// TestPushBlocked: watches whose clients do not read keep neither the writer waiting nor, for long, the others; those that
// have kept others waiting do so once.
func TestPushBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		s.state.limits.events = 50
		const watches = 400
		var all []*pushed
		stop := make(chan struct{})
		for n := range watches {
			p := startPush(t, s)
			if all = append(all, p); n%2 == 0 {
				<-p.events
				p.block.Store(&stop)
			}
		}
		synctest.Wait()
		round := func(names ...string) (took time.Duration) {
			t.Helper()
			began := time.Now()
			put(t, s, names...)
			if d := time.Since(began); d != 0 {
				t.Errorf("the writer waited %v", d)
			}
			for n := 1; n < watches; n += 2 {
				for range names {
					<-all[n].events
				}
			}
			return time.Since(began)
		}
		for n := 1; n < watches; n += 2 {
			<-all[n].events
		}
		if took := round("a"); took > 20*pushPatience {
			t.Errorf("with %d that block at once, others waited %v", watches/2, took)
		}
		if took := round("b"); took != 0 { // those that block are not asked again
			t.Errorf("others waited %v", took)
		}
		time.Sleep(2 * pushPatience) // the last of them have only begun to wait
		close(stop)
		synctest.Wait()
		again := make(chan struct{})
		for n := 0; n < watches; n += 2 {
			for range 2 {
				<-all[n].events
			}
			all[n].block.Store(&again)
		}
		if took := round("c"); took != 0 {
			t.Errorf("those that have blocked before kept others waiting %v", took)
		}
		for n := range 100 { // above the bound: who does not read is cut off
			if took := round("x" + strconv.Itoa(n)); took != 0 {
				t.Errorf("others waited %v", took)
			}
		}
		close(again)
		for n := 0; n < watches; n += 2 {
			if err := <-all[n].err; !errors.Is(err, resource.ErrWatchReset) {
				t.Fatalf("slow watch: %v, want ErrWatchReset", err)
			}
		}
		s.Close()
		for n := 1; n < watches; n += 2 {
			if err := <-all[n].err; !errors.Is(err, resource.ErrClosed) {
				t.Fatalf("closed: %v", err)
			}
		}
	})
}

// TestPushEnds: asleep or sending, Push ends with what ends it, but not before send has returned.
func TestPushEnds(t *testing.T) {
	failed := errors.New("cannot send")
	for name, c := range map[string]struct {
		end  func(s *Store, p *pushed)
		want error
	}{
		"context": {func(_ *Store, p *pushed) { p.cancel() }, context.Canceled},
		"watch":   {func(_ *Store, p *pushed) { p.Close(); p.Close() }, resource.ErrClosed},
		"store":   {func(s *Store, _ *pushed) { s.Close() }, resource.ErrClosed},
		"restore": {restoreEmpty, resource.ErrWatchReset},
	} {
		for _, sending := range []bool{false, true} {
			t.Run(name+"/sending="+strconv.FormatBool(sending), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := New()
					p := startPush(t, s)
					<-p.events
					block := make(chan struct{})
					if sending {
						p.block.Store(&block)
						put(t, s, "a")
					}
					synctest.Wait()
					c.end(s, p)
					synctest.Wait()
					if sending {
						if len(p.err) > 0 {
							t.Error("Push ended while it sent")
						}
						close(block)
					}
					if err := <-p.err; !errors.Is(err, c.want) {
						t.Errorf("%v, want %v", err, c.want)
					}
					if n := s.state.kept.Load(); n != 0 {
						t.Errorf("%d bytes kept for nobody", n)
					}
					s.Close()
				})
			})
		}
	}
	s := New()
	defer s.Close()
	if err := open(t, s).Push(t.Context(), func(*pb.WatchEvent) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("%v, want that of send", err)
	}
}

func restoreEmpty(s *Store, _ *pushed) {
	var b bytes.Buffer
	if err := New().WriteSnapshot(&b); err != nil {
		panic(err)
	}
	if err := s.Restore(&b); err != nil {
		panic(err)
	}
}

// TestPushRace: watches that begin and end beside writers get every event once, in order, one at a time.
func TestPushRace(t *testing.T) {
	s := New()
	defer s.Close()
	s.state.limits.events = 64
	var writers, followers sync.WaitGroup
	stop := make(chan struct{})
	for n := range 100 {
		followers.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				w, err := s.Watch(resource.Query{Type: testType})
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((n*7+round)%20+1)*time.Millisecond)
				var busy atomic.Bool
				last := uint64(0)
				err = w.(resource.PushedWatch).Push(ctx, func(ev *pb.WatchEvent) error {
					if !busy.CompareAndSwap(false, true) {
						t.Error("two at a time")
					}
					defer busy.Store(false)
					b, err := proto.Marshal(ev)
					if err != nil {
						return err
					}
					got := new(pb.WatchEvent)
					if err := proto.Unmarshal(b, got); err != nil {
						return err
					}
					if r := got.GetUpsert().GetResource(); r != nil {
						if i := r.GetModifyIndex(); last != 0 && i != last+1 {
							t.Errorf("event of index %d after %d", i, last)
						}
						last = r.GetModifyIndex()
					}
					return nil
				})
				busy.Store(true) // nothing may be sent from here on
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, resource.ErrWatchReset) {
					t.Error(err)
				}
				cancel()
				w.Close()
			}
		})
	}
	for range 2 {
		writers.Go(func() {
			for range 500 {
				put(t, s, "x")
			}
		})
	}
	writers.Wait()
	close(stop)
	followers.Wait()
	if n := s.state.kept.Load(); n != 0 {
		t.Errorf("%d bytes kept for nobody", n)
	}
}
