// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// Inputs are the data from which snapshots are built. A source of data writes
// them: Follow in a server, Client in a gateway process. Every state machine of
// a Manager reads them. The zero Inputs are ready for use.
type Inputs struct {
	Servers     Value[[]Server]
	Datacenters Value[[]*Datacenter]
}

// Value is one kind of data of a source. The zero Value is ready for use. Its
// methods may be called from any goroutine and do not block.
type Value[T any] struct {
	changed broadcast.Broadcast
	mu      sync.Mutex
	reading Reading[T]
}

// Reading is the state of a Value.
type Reading[T any] struct {
	// Data is immutable. It is the zero value until the source has data.
	Data T
	// At is the time at which the source confirmed the data. Zero: unknown.
	At time.Time
	// Origin names the place that the data comes from.
	Origin string
}

// Get returns the newest data, and a channel that is closed at its next change.
// A reader that is slow misses changes, but not the newest data.
func (v *Value[T]) Get() (Reading[T], <-chan struct{}) {
	changed := v.changed.Wait() // before the read
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reading, changed
}

// set replaces the reading. It notifies readers unless same reports that the
// data is unchanged.
func (v *Value[T]) set(r Reading[T], same func(a, b T) bool) {
	v.mu.Lock()
	unchanged := same(v.reading.Data, r.Data)
	if unchanged {
		r.Data = v.reading.Data
	}
	v.reading = r
	v.mu.Unlock()
	if !unchanged {
		v.changed.Notify()
	}
}

// confirm records that the source at origin confirmed the data at the time at.
func (v *Value[T]) confirm(origin string, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reading.Origin, v.reading.At = origin, at
}

// confirmed has the time at which a source confirmed each part of a message.
type confirmed struct{ servers, datacenters time.Time }

// confirmedNow is for a source that confirms a message as a whole.
func confirmedNow() confirmed {
	now := time.Now()
	return confirmed{now, now}
}

// oldest returns the time of the part that was confirmed first.
func (c confirmed) oldest() time.Time {
	if c.servers.Before(c.datacenters) {
		return c.servers
	}
	return c.datacenters
}

// confirm records that the source at origin confirmed the last message.
func (in *Inputs) confirm(origin string, at confirmed) {
	in.Servers.confirm(origin, at.servers)
	in.Datacenters.confirm(origin, at.datacenters)
}

// set replaces both inputs by a message, and returns the invalid parts of the
// message. Only one goroutine may call it. Unchanged datacenters keep their
// address.
func (in *Inputs) set(m *pb.GatewaySnapshot, origin string, at confirmed) (faults []error) {
	servers, datacenters, faults := parse(m)
	last, _ := in.Datacenters.Get()
	known := make(map[string]*Datacenter, len(last.Data))
	for _, d := range last.Data {
		known[d.DC] = d
	}
	for i, d := range datacenters {
		if old := known[d.DC]; old != nil && old.equal(d) {
			datacenters[i] = old
		}
	}
	in.Servers.set(Reading[[]Server]{servers, at.servers, origin}, slices.Equal)
	in.Datacenters.set(Reading[[]*Datacenter]{datacenters, at.datacenters, origin}, func(a, b []*Datacenter) bool {
		return a != nil && slices.Equal(a, b)
	})
	return faults
}

// Follow keeps the inputs equal to the messages of next until ctx ends. next
// returns the newest message, or nil, and a channel that is closed when there
// is a newer message. A server calls Follow with the messages that it computes
// from its store and its gossip pools.
func (in *Inputs) Follow(
	ctx context.Context, origin string, next func() (*pb.GatewaySnapshot, <-chan struct{}), logger *slog.Logger,
) error {
	for {
		m, changed := next()
		if m != nil {
			logFaults(logger, in.set(m, origin, confirmedNow()))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func logFaults(logger *slog.Logger, faults []error) {
	for _, err := range faults {
		logger.Warn("part of the snapshot ignored", "err", err)
	}
}
