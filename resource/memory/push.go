// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

const (
	// pushTurn is after how many watches one who sends lets others run: those who write to the connections, above all.
	pushTurn = 64
	// pushFew watches have a goroutine each.
	pushFew = 4
	// pushPatience is how long a send may keep others waiting, before somebody else serves them.
	pushPatience = 5 * time.Millisecond
	// pushAlone is how many times a watch that kept others waiting does not get the chance again.
	pushAlone = 100
)

// push is a watch that has somebody send its events. While there are none it is in the list of the item that it stands on, and
// costs nothing; then one of the few goroutines of a delivery serves it. A goroutine for each watch would have to be
// waked, and find its own stack in memory again, which is most of what an event costs.
type push struct {
	w      *watch
	send   func(*pb.WatchEvent) error
	done   chan error  // size 1: why it ended; then nobody serves it
	ending atomic.Bool // it must not sleep again
	alone  int         // how many times it is still served by a goroutine of its own; for who serves it

	at         atomic.Pointer[item] // in whose list it is; nil: somebody serves it. Changed with at's mutex held.
	prev, next *push                // in that list, guarded by its mutex
}

// sleepers is the list of an item's watches that sleep, in the order in which they came.
type sleepers struct {
	mu          sync.Mutex
	first, last *push
	n, served   int // how many are in it, and how many were taken out to be served
}

// Push is resource.PushedWatch's.
func (w *watch) Push(ctx context.Context, send func(*pb.WatchEvent) error) error {
	p := &push{w: w, send: send, done: make(chan error, 1)}
	w.mu.Lock()
	w.pushed = p
	w.mu.Unlock()
	defer context.AfterFunc(ctx, w.Close)()
	p.serve(nil) // the snapshot
	err := <-p.done
	if ctx.Err() != nil && errors.Is(err, resource.ErrClosed) {
		return ctx.Err()
	}
	return err
}

// end is called once the watch has ended: who serves p finds that out, and if nobody does, it is said here.
func (p *push) end() {
	p.ending.Store(true)
	if p.leave() {
		p.done <- resource.ErrClosed // has room
	}
}

// serve sends what there is, until p sleeps or has ended: in both cases it is another's then. Since is when it began to keep
// others waiting, and becomes when it did so no more; nil: there are no others.
func (p *push) serve(since *time.Time) {
	for {
		ev, at, err := p.w.take()
		switch {
		case err != nil:
			p.done <- err
			return
		case ev == nil:
			p.judge(since)
			if at.sleep(p) {
				return
			}
		default:
			if err := p.send(ev.raw()); err != nil {
				p.done <- err
				return
			}
		}
	}
}

// judge decides who serves p the next time.
func (p *push) judge(since *time.Time) {
	if since == nil {
		return
	}
	now := time.Now()
	if now.Sub(*since) > pushPatience {
		p.alone = pushAlone
	} else if p.alone > 0 {
		p.alone--
	}
	*since = now
}

// sleep puts p to sleep, unless there is a next item, or p ends.
func (it *item) sleep(p *push) bool {
	l := &it.asleep
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.next.Load() != nil {
		return false
	}
	p.at.Store(it)
	if p.ending.Load() { // and was not found here
		p.at.Store(nil)
		return false
	}
	if p.prev = l.last; p.prev != nil {
		p.prev.next = p
	} else {
		l.first = p
	}
	l.last = p
	l.n++
	return true
}

// leave takes p from the list that it is in, if it is in one.
func (p *push) leave() bool {
	for {
		it := p.at.Load()
		if it == nil {
			return false
		}
		l := &it.asleep
		l.mu.Lock()
		here := p.at.Load() == it
		if here {
			l.removeLocked(p)
		}
		l.mu.Unlock()
		if here {
			return true
		}
	}
}

func (l *sleepers) removeLocked(p *push) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.prev, p.next = nil, nil
	l.n--
	p.at.Store(nil)
}

// pop takes out the one that has slept longest.
func (l *sleepers) pop() *push {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.first
	if p != nil {
		l.removeLocked(p)
		l.served++
	}
	return p
}

// progress returns how many are left, and how many were served.
func (l *sleepers) progress() (left, served int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n, l.served
}

// delivery serves those who slept at an item that has a next one. A few goroutines do, and if all of them have to wait for
// sends, more and more: nobody waits long for a watch whose client does not read. They end when the list is empty.
type delivery struct {
	asleep        *sleepers
	served, extra int // for tick alone
}

// deliver returns at once.
func (it *item) deliver() {
	n, _ := it.asleep.progress()
	d := &delivery{asleep: &it.asleep, extra: 1}
	workers := n
	if n > pushFew {
		workers = min(n, runtime.GOMAXPROCS(0))
		time.AfterFunc(pushPatience, d.tick)
	}
	for range workers {
		go d.serve()
	}
}

func (d *delivery) serve() {
	since := time.Now()
	for n := 1; ; n++ {
		p := d.asleep.pop()
		switch {
		case p == nil:
			return
		case p.alone > 0:
			go func() {
				since := time.Now()
				p.serve(&since)
			}()
		default:
			p.serve(&since)
		}
		if n%pushTurn == 0 {
			runtime.Gosched()
			since = time.Now()
		}
	}
}

// tick is called each pushPatience until the list is empty.
func (d *delivery) tick() {
	left, served := d.asleep.progress()
	if left == 0 {
		return
	}
	if served == d.served {
		for range min(d.extra, left) {
			go d.serve()
		}
		d.extra *= 2
	}
	d.served = served
	time.AfterFunc(pushPatience, d.tick)
}
