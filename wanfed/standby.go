// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// Bounds of the probe timeout. A stream, an echo or a gRPC response that is
// later than the probe timeout starts a liveness probe of its connection.
// Within the bounds the timeout is two round trips of the path.
const (
	MinProbeTimeout = 150 * time.Millisecond
	// MaxProbeTimeout is the upper bound while few round trips are measured.
	MaxProbeTimeout = time.Second
	// maxMeasuredTimeout is the upper bound for a measured round trip. On an
	// overloaded machine all responses are late, and the dials that late
	// responses start must not add to the load.
	maxMeasuredTimeout = 4 * time.Second
)

// While the liveness of a session is probed, the tunnel opens a standby: a
// second session to the same target over another path. If the probe fails, the
// standby replaces the session without a further dial. If the session is alive,
// the standby is dropped, usually before its handshake ends. An exponential
// backoff between these bounds then delays the next standby. The backoff limits
// the dials that a slow peer causes.
const (
	minStandbyBackoff = 250 * time.Millisecond
	maxStandbyBackoff = time.Minute
)

// standbyState links a session and its standby. Tunnel.mu guards all fields
// that are not immutable.
type standbyState struct {
	probes    int             // running probes of this session
	standby   *session        // of this session; nil: none
	backoff   backoff.Backoff // of the pause after a dropped standby
	notBefore time.Time       // earliest time of the next standby

	// The other fields are set only if this session began as a standby.
	active     *session           // the session that is probed; nil after the promotion
	firstPaths []Path             // of the first dial; immutable
	cancel     context.CancelFunc // ends this session; immutable
}

func (s *session) probeTimeout() time.Duration {
	return s.t.cfg.Dialer.probeTimeout(pathConnOf(s.conn))
}

// probeTimeout returns the probe timeout of a connection over p. Its round trip
// is the measured one or, while few are measured, the duration of the
// handshake. Through a local gateway the handshake takes two round trips,
// because the gateway dials the next gateway during the handshake.
func (d *Dialer) probeTimeout(p *pathConn) time.Duration {
	if s := d.paths.get(p.dc, p.path.Addr); s.samples >= minSamples {
		return min(max(2*s.rtt, MinProbeTimeout), maxMeasuredTimeout)
	}
	timeout := p.handshakeRTT
	if !p.path.Local {
		timeout *= 2
	}
	return min(max(timeout, MinProbeTimeout), MaxProbeTimeout)
}

// probe sends a yamux ping to the peer of the session. A slow server responds
// to a ping, but over a dead path no pong arrives. If no pong arrives within
// twice the probe timeout, probe removes the session and closes the returned
// channel. The next stream then uses another path. The probe has no effect
// after ctx has ended.
func (s *session) probe(ctx context.Context) <-chan struct{} {
	silent, pong := make(chan struct{}), make(chan struct{})
	s.t.group.spawn(func(context.Context) {
		if _, err := s.mux.Ping(); err == nil { // fails after keepaliveTimeout, or at the end of the session
			close(pong)
		}
	})
	s.t.group.spawn(func(run context.Context) {
		settle, alive := s.openStandby(), false
		select {
		case <-time.After(2 * s.probeTimeout()):
			s.markDead(errSessionSilent)
			close(silent)
		case <-pong:
			alive = true
		case <-ctx.Done():
		case <-run.Done():
		}
		settle(alive)
	})
	return silent
}

// openStandby opens a standby while the caller probes s. The caller calls
// settle once, with the result of the probe. If s is dead, the caller removes s
// before it calls settle, and the standby replaces s. settle drops a standby
// that has not replaced s if s is alive, or if no other probe of s is running.
func (s *session) openStandby() (settle func(alive bool)) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	s.probes++
	s.openStandbyLocked(time.Now())
	return func(alive bool) {
		s.t.mu.Lock()
		defer s.t.mu.Unlock()
		if s.probes--; alive || s.probes == 0 {
			s.dropStandbyLocked(time.Now())
		}
	}
}

func (s *session) openStandbyLocked(now time.Time) {
	if s.standby != nil || s.t.sessions[s.to] != s || s.to.dc == s.t.self.DC || now.Before(s.notBefore) {
		return
	}
	paths := s.t.cfg.Dialer.otherPaths(s.conn, Target{DC: s.to.dc})
	if len(paths) == 0 {
		return
	}
	if now.Sub(s.notBefore) > maxStandbyBackoff {
		s.backoff = backoff.Backoff{Min: minStandbyBackoff, Max: maxStandbyBackoff}
	}
	ctx, cancel := context.WithCancel(s.t.group.ctx)
	n := newSession(s.t, s.to, s.addr)
	n.active, n.firstPaths, n.cancel = s, paths, cancel
	if s.t.group.spawn(func(context.Context) { defer cancel(); n.run(ctx) }) {
		s.standby = n
	}
}

func (s *session) dropStandbyLocked(now time.Time) {
	if s.standby != nil {
		s.standby.cancel()
		s.standbyGoneLocked(now)
	}
}

// standbyGoneLocked unlinks the standby of s, which was dropped or could not be
// opened, and starts the backoff.
func (s *session) standbyGoneLocked(now time.Time) {
	s.standby.active, s.standby, s.notBefore = nil, nil, now.Add(s.backoff.Next())
}

// dialOnce dials the target. If first is true and s is a standby, dialOnce
// tries the path of the active session last.
func (s *session) dialOnce(ctx context.Context, first bool) (*tls.Conn, error) {
	if !first || len(s.firstPaths) == 0 {
		return s.t.dialTarget(ctx, s.to, s.addr, ProtoStream, ProtoConsulStream)
	}
	ctx, cancel := context.WithTimeout(ctx, s.t.limits.dialTimeout)
	defer cancel()
	alpn := []string{ProtoStream, ProtoConsulStream}
	return s.t.cfg.Dialer.dialPaths(ctx, Target{DC: s.to.dc}, s.firstPaths, alpn)
}

// markDead removes s from the tunnel, unless s was already removed, and records
// that the path of s failed. It records nothing if the standby that replaces s
// works over the same first gateway. The fault is then behind that gateway.
func (s *session) markDead(err error) {
	s.t.mu.Lock()
	if s.t.sessions[s.to] != s {
		s.t.mu.Unlock()
		return
	}
	s.removeLocked()
	next := s.t.sessions[s.to]
	s.t.mu.Unlock()
	failed := pathConnOf(s.conn).path.Addr
	if next == nil || !next.isReady() || next.conn == nil || pathConnOf(next.conn).path.Addr != failed {
		s.t.cfg.Dialer.ReportFailure(s.conn, err)
	}
}
