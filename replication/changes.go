// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// Bounds of the changes that a source remembers: so many, and so many bytes. The latest commit stays whatever its size.
const (
	keepChanges = 8192
	keepBytes   = 16 << 20
)

// errForgotten: a follower's place is no longer among the changes that are remembered. It compares anew.
var errForgotten = errors.New("the follower is too far behind, or the primary's records were restored: compare anew")

// change is one record's: the form that secondaries store, or the id that is gone. Both are shared and immutable.
type change struct {
	kind kind
	put  *pb.Resource // nil: it is gone
	gone *pb.ID
	size int // encoded, in bytes
}

func (c change) id() *pb.ID {
	if c.put != nil {
		return c.put.Id
	}
	return c.gone
}

// commit is what one commit of the primary's store changed of federated records.
type commit struct {
	index   uint64
	check   uint64 // of its content
	changes []change
	size    int
}

// newCommit computes sizes and check sum. Encoding is deterministic: all servers of the primary that federate the same kinds
// have the same sum.
func newCommit(kinds []kind, index uint64, changes []change) *commit {
	c := &commit{index: index, changes: changes}
	sum := sha256.New()
	for _, k := range kinds {
		_, _ = sum.Write([]byte(k.group + "\x00" + k.name + "\x00"))
	}
	var buf []byte
	for i, ch := range changes {
		var m proto.Message = ch.gone
		if ch.put != nil {
			m = ch.put
		}
		var err error
		buf, err = proto.MarshalOptions{Deterministic: true}.MarshalAppend(buf[:0], m)
		if err != nil {
			panic(err) // it came out of a store that had encoded it
		}
		changes[i].size = len(buf)
		c.size += len(buf)
		_, _ = sum.Write(binary.AppendUvarint(nil, uint64(len(buf))))
		_, _ = sum.Write(buf)
	}
	c.check = binary.BigEndian.Uint64(sum.Sum(nil))
	return c
}

// log remembers the latest commits, for all followers. A place in it is the number of the commit that comes next. It may be
// used from any goroutine.
type log struct {
	mu      sync.Mutex
	ready   bool // it begins with what a store has
	commits []*commit
	first   uint64 // number of commits[0]
	before  *pb.FollowPosition
	changes int
	size    int
	moved   chan struct{} // closed at the next change of anything here
}

// start forgets everything, and begins at index. Places of before are no more.
func (l *log) start(index uint64) {
	var random [8]byte
	rand.Read(random[:])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first += uint64(len(l.commits)) + 1
	l.commits, l.changes, l.size = nil, 0, 0
	// Nobody else has this sum: what precedes the first commit has none.
	l.before = &pb.FollowPosition{Index: index, Check: binary.BigEndian.Uint64(random[:])}
	l.ready = true
	l.wakeLocked()
}

// stop makes the log useless until it is started again.
func (l *log) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first += uint64(len(l.commits)) + 1
	l.commits, l.changes, l.size, l.ready = nil, 0, 0, false
	l.wakeLocked()
}

func (l *log) append(all ...*commit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range all {
		l.commits = append(l.commits, c)
		l.changes += len(c.changes)
		l.size += c.size
	}
	for len(l.commits) > 1 && (l.changes > keepChanges || l.size > keepBytes) {
		c := l.commits[0]
		l.before = c.position()
		l.changes -= len(c.changes)
		l.size -= c.size
		l.commits[0] = nil
		l.commits = l.commits[1:]
		l.first++
	}
	l.wakeLocked()
}

func (c *commit) position() *pb.FollowPosition {
	return &pb.FollowPosition{Index: c.index, Check: c.check}
}

// end is where nothing has come yet.
func (l *log) end() (next uint64, at *pb.FollowPosition, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at = l.before
	if n := len(l.commits); n > 0 {
		at = l.commits[n-1].position()
	}
	return l.first + uint64(len(l.commits)), at, l.ready
}

// find returns what comes after a position, if the log reaches back to it.
func (l *log) find(at *pb.FollowPosition) (next uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || at == nil {
		return 0, false
	}
	if l.before.Index == at.Index && l.before.Check == at.Check {
		return l.first, true
	}
	for i, c := range l.commits {
		if c.index == at.Index && c.check == at.Check {
			return l.first + uint64(i) + 1, true
		}
	}
	return 0, false
}

// since returns the commits from next on, at least one and not many more than size bytes; or a channel that is closed when
// there may be some. It fails with errForgotten.
func (l *log) since(next uint64, size int) (commits []*commit, moved <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready || next < l.first {
		return nil, nil, errForgotten
	}
	total := 0
	for _, c := range l.commits[next-l.first:] {
		if total += c.size; total > size && len(commits) > 0 {
			break
		}
		commits = append(commits, c)
	}
	if len(commits) == 0 {
		if l.moved == nil {
			l.moved = make(chan struct{})
		}
		return nil, l.moved, nil
	}
	return commits, nil, nil
}

func (l *log) wakeLocked() {
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}
