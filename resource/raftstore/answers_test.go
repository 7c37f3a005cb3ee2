// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// promised is Raft's future of an entry: what comes from errc, and that result.
type promised struct {
	errc chan error
	res  result
}

func (p promised) Error() error  { return <-p.errc }
func (p promised) Index() uint64 { return 0 }
func (p promised) Response() any { return p.res }

func promise() promised { return promised{errc: make(chan error, 1)} }

// begin has an entry wait for its answer, with Raft's future f.
func begin(t *testing.T, a *answers, entry []byte, f raft.ApplyFuture) *answer {
	t.Helper()
	w, ask := a.expect(entry)
	if w == nil {
		t.Fatal("no room for one more answer")
	}
	if ask {
		go a.ask(t.Context().Done(), nil)
	}
	a.given(w, f)
	return w
}

var errEntry = errors.New("refused by the state machine")

// TestAnswersFromMachine: the state machine's result comes at once, and to whom it belongs.
func TestAnswersFromMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a answers
		one, two := []byte("same"), []byte("same")
		first, second := begin(t, &a, one, promise()), begin(t, &a, two, promise())
		began := time.Now()
		a.applied([]*raft.Log{{Type: raft.LogBarrier}, {Data: []byte("same")}, {Data: two}}, []any{nil, result{}, result{err: errEntry}})
		if is := <-second.c; is.err != errEntry || is.raftErr != nil {
			t.Errorf("answer %+v", is)
		}
		select {
		case is := <-first.c:
			t.Errorf("answer of another entry: %+v", is)
		default:
		}
		a.applied([]*raft.Log{{Data: one}}, []any{result{}})
		if is := <-first.c; is.err != nil || time.Since(began) != 0 {
			t.Errorf("answer %+v after %v", is, time.Since(began))
		}
	})
}

// TestAnswersFromRaft: what Raft refuses is heard of soon, also when the state machine never is.
func TestAnswersFromRaft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a answers
		lost, done := promise(), promise()
		lost.errc <- raft.ErrLeadershipLost
		done.res.err = errEntry
		done.errc <- nil
		began := time.Now()
		first, second := begin(t, &a, []byte("a"), lost), begin(t, &a, []byte("b"), done)
		if is := <-first.c; is.raftErr != raft.ErrLeadershipLost {
			t.Errorf("answer %+v", is)
		}
		if is := <-second.c; is.raftErr != nil || is.err != errEntry {
			t.Errorf("answer %+v", is)
		}
		if d := time.Since(began); d > 2*answerPatience {
			t.Errorf("Raft's answer came after %v", d)
		}
	})
}

// TestAnswersBound: there is room for as many as Raft takes without waiting, and again for one when one has its answer.
func TestAnswersBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a answers
		entries := make([][]byte, maxAnswers)
		for i := range entries {
			entries[i] = []byte{1}
			begin(t, &a, entries[i], promise())
		}
		if w, _ := a.expect([]byte{1}); w != nil {
			t.Error("room for one too many")
		}
		if w, _ := a.expect(nil); w != nil {
			t.Error("room for an entry that cannot be told from others")
		}
		logs, results := make([]*raft.Log, maxAnswers), make([]any, maxAnswers)
		for i, e := range entries {
			logs[i], results[i] = &raft.Log{Data: e}, result{}
		}
		a.applied(logs, results)
		f := promise()
		f.errc <- nil
		<-begin(t, &a, []byte{1}, f).c
	})
}

// TestAnswersAskEnds: nobody asks any more when nothing has waited for a while, or the store closes; with the next entry somebody does.
func TestAnswersAskEnds(t *testing.T) {
	for name, closes := range map[string]bool{"idle": false, "closing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var a answers
				w, ask := a.expect([]byte{1})
				if !ask {
					t.Fatal("nobody is to ask")
				}
				closing, ended := make(chan struct{}), make(chan struct{})
				go func() { a.ask(closing, nil); close(ended) }()
				f := promise()
				a.given(w, f)
				if closes {
					close(closing)
				}
				time.Sleep(time.Second)
				select {
				case <-ended:
					t.Fatal("ended while one waits")
				default:
				}
				began := time.Now()
				f.errc <- nil
				<-w.c
				<-ended
				if d, most := time.Since(began), (answerIdle+1)*answerPatience; d > most || closes && d > answerPatience {
					t.Errorf("ended after %v", d)
				}
				if _, ask := a.expect([]byte{1}); !ask {
					t.Error("nobody is to ask for the next")
				}
			})
		})
	}
}
