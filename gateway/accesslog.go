// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"encoding/json"
	"io"
	"net/netip"
	"sync/atomic"
	"time"
)

// How a connection that was forwarded ended, as the access log shows it. One that was not forwarded has the Reason there.
const (
	endDone    = "done"    // both directions were ended by those who talk
	endCut     = "cut"     // a connection failed: a reset, or a dead peer
	endStopped = "stopped" // the gateway ended it: its drain was over
)

// accessQueue is how many lines may wait for a slow file; those that come then are dropped and counted.
const accessQueue = 1024

// accessLog writes one line of JSON for each connection that is sampled, when it ends.
type accessLog struct {
	w       io.Writer // nil: there is none
	every   atomic.Int64
	seen    atomic.Uint64
	dropped atomic.Uint64
	queue   chan *trip
}

// trip is what is noted of one connection for the access log. Nil is one that is not noted: its methods do nothing. It belongs
// to whoever owns the connection; the bytes may be counted by others.
type trip struct {
	log      *accessLog
	side     string
	remote   netip.AddrPort
	began    time.Time
	ended    time.Time
	hello    time.Duration // after began
	dial     time.Duration // after the hello
	sni      string
	upstream string
	up, down atomic.Uint64
	end      string
}

// accessLine is the form of a line.
type accessLine struct {
	Time     time.Time `json:"time"` // of the accept
	Side     string    `json:"listener"`
	Remote   string    `json:"remote"`
	SNI      string    `json:"sni,omitempty"`
	Upstream string    `json:"upstream,omitempty"`
	Up       uint64    `json:"bytes_up"`
	Down     uint64    `json:"bytes_down"`
	Hello    float64   `json:"hello_ms"`
	Dial     float64   `json:"dial_ms"`
	Duration float64   `json:"duration_ms"`
	End      string    `json:"end"`
}

func newAccessLog(w io.Writer, every int) *accessLog {
	l := &accessLog{w: w, queue: make(chan *trip, accessQueue)}
	l.every.Store(int64(every))
	return l
}

// SetAccessSample has one of every so many connections noted in the access log from now on; 0 or less: none. It may be called
// at any time.
func (p *Proxy) SetAccessLogSample(every int) { p.access.every.Store(int64(every)) }

// AccessDropped is how many lines the access log lacks because its writer was too slow or failed.
func (p *Proxy) AccessLogDropped() uint64 { return p.access.dropped.Load() }

// begin returns nil for a connection that is not noted.
func (l *accessLog) begin(side *Listener, remote netip.AddrPort, now time.Time) *trip {
	every := l.every.Load()
	if l.w == nil || every <= 0 || (l.seen.Add(1)-1)%uint64(every) != 0 {
		return nil
	}
	return &trip{log: l, side: side.name, remote: remote, began: now, end: endDone}
}

// from notes where the client really is.
func (t *trip) from(remote netip.AddrPort) {
	if t != nil {
		t.remote = remote
	}
}

// helloCame notes the name of a whole hello.
func (t *trip) helloCame(sni []byte, took time.Duration) {
	if t != nil {
		t.sni, t.hello = clip(string(sni)), took
	}
}

// reached notes the upstream.
func (t *trip) reached(addr string, took time.Duration) {
	if t != nil {
		t.upstream, t.dial = addr, took
	}
}

// endsBy notes why the connection ends, if that is not simply its end.
func (t *trip) endsBy(why string) {
	if t != nil {
		t.end = why
	}
}

// over hands the trip to the writer. Nobody may use it afterwards.
func (t *trip) over(now time.Time) {
	if t == nil {
		return
	}
	t.ended = now
	select {
	case t.log.queue <- t:
	default:
		t.log.dropped.Add(1)
	}
}

// tally counts the bytes of one direction, for the side and for the trip.
type tally struct{ side, own *atomic.Uint64 }

// tallies are those of a connection: to the upstream, and back.
func (t *trip) tallies(s *Listener) (up, down tally) {
	if t == nil {
		return tally{side: &s.up}, tally{side: &s.down}
	}
	return tally{&s.up, &t.up}, tally{&s.down, &t.down}
}

// Add counts n bytes.
func (t tally) Add(n uint64) {
	t.side.Add(n)
	if t.own != nil {
		t.own.Add(n)
	}
}

// run writes lines until the queue is closed.
func (l *accessLog) run() {
	enc := json.NewEncoder(l.w)
	enc.SetEscapeHTML(false)
	for t := range l.queue {
		if err := enc.Encode(t.line()); err != nil {
			l.dropped.Add(1)
		}
	}
}

func (t *trip) line() accessLine {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return accessLine{
		Time: t.began.UTC(), Side: t.side, Remote: t.remote.String(), SNI: t.sni, Upstream: t.upstream,
		Up: t.up.Load(), Down: t.down.Load(),
		Hello: ms(t.hello), Dial: ms(t.dial), Duration: ms(t.ended.Sub(t.began)), End: t.end,
	}
}
