// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"os"
	"sync/atomic"
	"time"
)

// waiting are the pairs of a worker in stateHello, oldest first.
type waiting struct {
	queue
	// oldest is when the first began, in nanoseconds since the engine's start, plus one; zero: there is none. Other workers
	// read it.
	oldest atomic.Int64
}

func (l *waiting) push(p *pair) {
	l.queue.push(p)
	l.note()
}

func (l *waiting) remove(p *pair) {
	l.queue.remove(p)
	l.note()
}

func (l *waiting) note() {
	at := int64(0)
	if l.first != nil {
		at = int64(l.first.began) + 1
	}
	if l.oldest.Load() != at {
		l.oldest.Store(at)
	}
}

// makeRoom counts one more connection of the whole engine. When the limit is reached, the one that has been waiting longest for
// its hello goes; if none is older than the grace, it returns false. The one that goes may belong to another worker: then it
// goes soon.
func (w *worker) makeRoom() bool {
	e := w.engine
	if e.open.Add(1) <= e.maxConns.Load() {
		return true
	}
	oldest, who := int64(w.now.Sub(w.start)-e.grace)+1, (*worker)(nil)
	for _, other := range e.workers {
		if at := other.waiting.oldest.Load(); at > 0 && at <= oldest {
			oldest, who = at, other
		}
	}
	switch who {
	case nil:
		e.open.Add(-1)
		return false
	case w:
		w.shed()
	default:
		who.post(message{kind: mailShed})
	}
	return true
}

// shed closes the pair that has been waiting longest for its hello, if it has for the grace.
func (w *worker) shed() {
	if p := w.waiting.first; p != nil && w.now.Sub(w.start)-p.began >= w.engine.grace {
		p.refuse(w, badHello(nil, true, 0))
	}
}

// expireHellos closes the pairs that took too long, and returns how long it is until the next one does; negative: there is none.
func (w *worker) expireHellos() time.Duration {
	for p := w.waiting.first; p != nil; p = w.waiting.first {
		if left := p.began + w.engine.helloTimeout - w.now.Sub(w.start); left > 0 {
			return left
		}
		p.refuse(w, badHello(os.ErrDeadlineExceeded, false, w.engine.helloTimeout))
	}
	return -1
}
