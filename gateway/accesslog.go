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
	w       io.Writer // nil: no access log
	every   atomic.Int64
	seen    atomic.Uint64
	dropped atomic.Uint64
	queue   chan *accessRecord
}

// accessRecord is the log entry of one connection. It belongs to the owner of
// the connection; count may be called concurrently. A nil record is not logged:
// its methods do nothing.
type accessRecord struct {
	log      *accessLog
	listener string
	remote   netip.AddrPort
	accepted time.Time
	ended    time.Time
	hello    time.Duration // from accept
	dial     time.Duration // from the ClientHello
	sni      string
	upstream string
	up, down atomic.Uint64
	end      string
}

// accessLine is the JSON form of a record.
type accessLine struct {
	Time     time.Time `json:"time"` // of the accept
	Listener string    `json:"listener"`
	Remote   string    `json:"remote"`
	SNI      string    `json:"sni,omitempty"`
	Upstream string    `json:"upstream,omitempty"`
	Up       uint64    `json:"bytes_up"`
	Down     uint64    `json:"bytes_down"`
	Hello    float64   `json:"hello_ms"`
	Dial     float64   `json:"dial_ms"`
	Duration float64   `json:"duration_ms"`
	End      string    `json:"end"` // a reactor.End, or a Reason
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

// begin returns nil for a connection that is not logged.
func (l *accessLog) begin(listener *Listener, remote netip.AddrPort, now time.Time) *accessRecord {
	every := l.every.Load()
	if l.w == nil || every <= 0 || (l.seen.Add(1)-1)%uint64(every) != 0 {
		return nil
	}
	return &accessRecord{log: l, listener: listener.name, remote: remote, accepted: now}
}

func (r *accessRecord) setRemote(remote netip.AddrPort) {
	if r != nil {
		r.remote = remote
	}
}

func (r *accessRecord) helloReceived(sni []byte, took time.Duration) {
	if r != nil {
		r.sni, r.hello = clip(string(sni)), took
	}
}

func (r *accessRecord) connected(addr string, took time.Duration) {
	if r != nil {
		r.upstream, r.dial = addr, took
	}
}

func (r *accessRecord) count(up, down int) {
	if r != nil {
		r.up.Add(uint64(up))
		r.down.Add(uint64(down))
	}
}

func (r *accessRecord) setEnd(end string) {
	if r != nil {
		r.end = end
	}
}

// close passes the record to the writer. The argument end is used only if
// setEnd was not called.
func (r *accessRecord) close(end string) {
	if r == nil {
		return
	}
	if r.ended = time.Now(); r.end == "" {
		r.end = end
	}
	select {
	case r.log.queue <- r:
	default:
		r.log.dropped.Add(1)
	}
}

// start writes records in a goroutine. stop ends and joins it.
func (l *accessLog) start() (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		enc := json.NewEncoder(l.w)
		enc.SetEscapeHTML(false)
		for r := range l.queue {
			if err := enc.Encode(r.line()); err != nil {
				l.dropped.Add(1)
			}
		}
	}()
	return func() {
		close(l.queue)
		<-done
	}
}

func (r *accessRecord) line() accessLine {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return accessLine{
		Time: r.accepted.UTC(), Listener: r.listener, Remote: r.remote.String(), SNI: r.sni, Upstream: r.upstream,
		Up: r.up.Load(), Down: r.down.Load(),
		Hello: ms(r.hello), Dial: ms(r.dial), Duration: ms(r.ended.Sub(r.accepted)), End: r.end,
	}
}
