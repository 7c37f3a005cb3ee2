// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"sync/atomic"
	"weak"

	"github.com/wanfed/wanfed/api/pb"
)

// shareFrom is from which resource of a list on those who list share messages. Short lists would gain nothing.
const shareFrom = 64

// messages are those made of a leaf's rows, as far as somebody still has them. They are immutable.
type messages [maxNode]weak.Pointer[pb.Resource]

// memo remembers the messages made of a leaf. A leaf that readers see never changes, so that they stay the right ones.
type memo struct{ atomic.Pointer[messages] }

// sharing makes the messages of one list, and has those who hold long ones at the same time share them: as many as do cost no more memory
// than one. The caller flushes it.
type sharing struct {
	count    int
	leaf     *node[row]
	was, now *messages // of the leaf: what is known, and what is new besides, if anything
}

// resource is the message of the row at i of the leaf.
func (s *sharing) resource(leaf *node[row], i int) *pb.Resource {
	if s.count++; s.count <= shareFrom {
		return leaf.vals[i].resource()
	}
	if s.leaf != leaf {
		s.flush()
		s.leaf, s.was = leaf, leaf.memo.Load()
	}
	if s.was != nil {
		if r := s.was[i].Value(); r != nil {
			return r
		}
	}
	r := leaf.vals[i].resource()
	if s.now == nil {
		s.now = new(messages)
		if s.was != nil {
			*s.now = *s.was
		}
	}
	s.now[i] = weak.Make(r)
	return r
}

// flush lets others have what is new of the last leaf.
func (s *sharing) flush() {
	if s.now != nil {
		s.leaf.memo.Store(s.now)
		s.now = nil
	}
}
