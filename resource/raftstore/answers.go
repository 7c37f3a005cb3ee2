// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

const (
	// maxAnswers is how many commits at once get their results from the state machine. Raft takes maxBatch entries before it makes
	// anybody wait, and leaves some for barriers: so that to hand one over never blocks.
	maxAnswers = maxBatch - 16
	// answerPatience is how long an entry has to get to the state machine before Raft is asked what became of it.
	answerPatience = 5 * time.Millisecond
	// answerIdle is how many times in a row nothing waits, before nobody looks any more.
	answerIdle = 20
)

// answers has the state machine itself hand each result to the commit that waits for it. Raft's future of an entry ends with no
// context, so that a goroutine would have to wait for each.
//
// What Raft refuses or loses never gets to the state machine. One goroutine asks the futures of entries that have waited for answerPatience,
// in order: ask. It ends when there has been nothing to ask for a while.
//
// The zero value is ready.
type answers struct {
	mu      sync.Mutex
	waiting map[*byte]*answer // by the entry's first byte: while this server leads, the state machine gets the memory that Raft was given
	queue   []*answer         // whom Raft has, in about the order in which it got them; some have their answer
	asking  bool
}

// answer is one commit that waits.
type answer struct {
	key   *byte
	since time.Time
	f     raft.ApplyFuture // of its entry, once it is in the queue
	c     chan outcome     // size 1
}

// outcome is what became of an entry: err is Raft's.
type outcome struct {
	result
	raftErr error
}

// expect makes room for the answer to an entry; nil: it must be had from Raft, since there are too many already, or nothing to tell the
// entry by. ask says that ask is to be run.
func (a *answers) expect(entry []byte) (w *answer, ask bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) >= maxAnswers || len(entry) == 0 {
		return nil, false
	}
	if a.waiting == nil {
		a.waiting = make(map[*byte]*answer)
	}
	w = &answer{key: &entry[0], since: time.Now(), c: make(chan outcome, 1)}
	a.waiting[w.key] = w
	ask, a.asking = !a.asking, true
	return w, ask
}

// given says that Raft has the entry, and what answers if the state machine never sees it.
func (a *answers) given(w *answer, f raft.ApplyFuture) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[w.key] == w {
		w.f = f
		a.queue = append(a.queue, w)
	}
}

// applied hands on the results of entries, as far as a commit waits for them here.
func (a *answers) applied(logs []*raft.Log, results []any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, log := range logs {
		if res, ok := results[i].(result); ok && len(log.Data) > 0 {
			a.answerLocked(a.waiting[&log.Data[0]], outcome{result: res})
		}
	}
}

// answerLocked gives w, which may be nil, its answer, unless it has one.
func (a *answers) answerLocked(w *answer, is outcome) {
	if w != nil && a.waiting[w.key] == w {
		delete(a.waiting, w.key)
		w.c <- is // has room
	}
}

// ask answers what the state machine does not, until nothing has waited for a while, or nothing waits and one of the channels is closed.
func (a *answers) ask(closing, failed <-chan struct{}) {
	tick := time.NewTicker(answerPatience)
	defer tick.Stop()
	for left := answerIdle; ; left-- {
		select {
		case <-tick.C:
		case <-closing:
			closing, left = nil, 0
		case <-failed:
			failed, left = nil, 0
		}
		for w := a.next(); w != nil; w = a.next() {
			is := outcome{raftErr: w.f.Error()}
			if is.raftErr == nil {
				is.result = w.f.Response().(result)
			}
			a.mu.Lock()
			a.answerLocked(w, is)
			a.mu.Unlock()
		}
		switch waits := a.rest(left <= 0); {
		case !waits && left <= 0:
			return
		case waits && left > 0:
			left = answerIdle
		}
	}
}

// rest says whether anybody waits, and if not, and last, that nobody asks any more.
func (a *answers) rest(last bool) (waits bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	waits = len(a.waiting) > 0
	a.asking = waits || !last
	return waits
}

// next takes the first out of the queue that has waited for long and has no answer.
func (a *answers) next() *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, w := range a.queue {
		if a.waiting[w.key] != w {
			continue
		}
		if time.Since(w.since) < answerPatience {
			a.queue = slices.Delete(a.queue, 0, i)
			return nil
		}
		a.queue = slices.Delete(a.queue, 0, i+1)
		return w
	}
	a.queue = slices.Delete(a.queue, 0, len(a.queue))
	return nil
}
