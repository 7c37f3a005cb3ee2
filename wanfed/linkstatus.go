// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"log/slog"
	"time"
)

// What a link says of itself: in its status, and in the log when it is news.

// failed records err, and logs it when it is news.
func (l *link) failed(err error) {
	l.mu.Lock()
	gateway := l.st.Path.Addr
	news := !l.failing
	l.failing = true
	l.st.ConnectedSince, l.st.RTT = time.Time{}, 0
	l.st.LastError, l.st.LastErrorAt = explain(err), time.Now()
	l.mu.Unlock()
	if news {
		l.t.log.Warn("gossip link down", "peer", l.to.String(), "gateway", gateway, "err", explain(err))
	} else {
		l.t.log.Debug("gossip link still down", "peer", l.to.String(), "err", err)
	}
}

// up records that the peer answered, and logs it when it is news: links to a large federation come and go with their packets.
func (l *link) up(p *pathConn, since time.Time, rtt time.Duration) {
	first := l.t.meet(l.to)
	l.mu.Lock()
	level := slog.LevelDebug
	if l.failing || first {
		level = slog.LevelInfo
	}
	l.failing = false
	l.st.ConnectedSince, l.st.RTT = since, rtt
	l.mu.Unlock()
	l.t.log.Log(context.Background(), level, "gossip link up", "peer", l.to.String(), "gateway", p.hop.Addr, "remote", p.addr, "rtt", rtt)
}

// closed records that the connection was closed for no fault.
func (l *link) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.ConnectedSince, l.st.RTT = time.Time{}, 0
}

// using records over which way and protocol the link goes now. Whether that works is not known yet.
func (l *link) using(p *pathConn, proto string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.st.Path, l.st.Protocol = p.hop, proto
	l.st.ConnectedSince, l.st.RTT = time.Time{}, 0
}

func (l *link) snapshot() LinkStatus {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.st
	s.Queued = l.q.count.total()
	return s
}
