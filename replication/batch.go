// SPDX-License-Identifier: MPL-2.0

package replication

import "github.com/wanfed/wanfed/api/pb"

// A batch has about this many bytes at most, and this many records; a record that is larger goes alone.
const (
	batchBytes   = 1 << 20
	batchRecords = 1024
)

// batcher makes batches of changes. Of several changes in one place, a batch has the last.
type batcher struct {
	send func(*pb.FollowResponse) error

	puts  []*pb.Resource // nil where a later change took its place
	at    map[string]int // by kind and place, into puts
	gone  []*pb.ID
	bytes int
}

// add sends what there is, if c does not fit any more.
func (b *batcher) add(c change) error {
	if n := len(b.puts) + len(b.gone); n > 0 && (n >= batchRecords || b.bytes+c.size > batchBytes) {
		if err := b.flush(0, nil); err != nil {
			return err
		}
	}
	b.bytes += c.size
	where := c.kind.group + "\x00" + c.kind.name + "\x00" + placeOf(c.id())
	i, replaces := b.at[where]
	switch {
	case c.put != nil && replaces:
		b.puts[i] = c.put
	case c.put != nil:
		if b.at == nil {
			b.at = map[string]int{}
		}
		b.at[where] = len(b.puts)
		b.puts = append(b.puts, c.put)
	default:
		if replaces { // deletions come first in a batch
			b.puts[i] = nil
			delete(b.at, where)
		}
		b.gone = append(b.gone, c.gone)
	}
	return nil
}

// flush sends what there is, also nothing, and what has been reached with it.
func (b *batcher) flush(index uint64, at *pb.FollowPosition) error {
	msg := &pb.FollowResponse{Index: index, Position: at, Deletes: b.gone}
	for _, r := range b.puts {
		if r != nil {
			msg.Upserts = append(msg.Upserts, r)
		}
	}
	*b = batcher{send: b.send}
	return b.send(msg)
}
