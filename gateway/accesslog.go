// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/json"
	"io"
	"net/netip"
	"sync/atomic"
	"time"
)

// accessQueue is the maximum number of lines that wait for a slow writer.
// Further lines are dropped and counted.
const accessQueue = 1024

// accessLog writes one line of JSON per sampled connection when it ends.
type accessLog struct {
	w       io.Writer     // nil: no access log
	every   atomic.Int64  // n: one of n connections is logged; 0 or negative: none
	seen    atomic.Uint64 // connections, logged or not
	dropped atomic.Uint64 // lines that were not written
	queue   chan *accessRecord
}

// accessRecord is the line of an open connection. Only the byte counters are
// safe for concurrent use.
type accessRecord struct {
	accessLine
	log                *accessLog
	bytesUp, bytesDown atomic.Uint64
}

// accessLine is one line of the log. Times are in milliseconds.
type accessLine struct {
	Time     time.Time `json:"time"` // of the accept
	Listener string    `json:"listener"`
	Remote   string    `json:"remote"`
	SNI      string    `json:"sni,omitempty"`
	Upstream string    `json:"upstream,omitempty"`
	Up       uint64    `json:"bytes_up"`
	Down     uint64    `json:"bytes_down"`
	Hello    float64   `json:"hello_ms"`    // from the accept to the complete ClientHello
	Dial     float64   `json:"dial_ms"`     // from the complete ClientHello to the upstream connection
	Duration float64   `json:"duration_ms"` // from the accept to the end
	End      string    `json:"end"`         // a reactor.End, or a Reason
}

func newAccessLog(w io.Writer, every int) *accessLog {
	l := &accessLog{w: w, queue: make(chan *accessRecord, accessQueue)}
	l.every.Store(int64(every))
	return l
}

// SetAccessLogSample logs one of every n connections from now on; 0 or
// negative: none.
func (p *Proxy) SetAccessLogSample(n int) { p.access.every.Store(int64(n)) }

// AccessLogDropped returns the number of lines that were not written because
// the writer was too slow or failed.
func (p *Proxy) AccessLogDropped() uint64 { return p.access.dropped.Load() }

// begin returns the record of a new connection, or nil if the connection is not
// logged.
func (l *accessLog) begin(listener *Listener, remote netip.AddrPort, now time.Time) *accessRecord {
	every := l.every.Load()
	if l.w == nil || every <= 0 || (l.seen.Add(1)-1)%uint64(every) != 0 {
		return nil
	}
	return &accessRecord{log: l, accessLine: accessLine{Time: now, Listener: listener.name, Remote: remote.String()}}
}

// close passes the record to the writer.
func (r *accessRecord) close() {
	r.Up, r.Down = r.bytesUp.Load(), r.bytesDown.Load()
	r.Duration = milliseconds(time.Since(r.Time))
	r.Time = r.Time.UTC() // only now: UTC removes the monotonic clock reading
	select {
	case r.log.queue <- r:
	default:
		r.log.dropped.Add(1)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// start writes records in a goroutine. stop ends and joins the goroutine.
func (l *accessLog) start() (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		enc := json.NewEncoder(l.w)
		enc.SetEscapeHTML(false)
		for r := range l.queue {
			if err := enc.Encode(r.accessLine); err != nil {
				l.dropped.Add(1)
			}
		}
	}()
	return func() {
		close(l.queue)
		<-done
	}
}
