// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

// Bounds of the probe timeout: the time after which a late stream, echo or gRPC
// response starts a liveness probe of its connection. Within the bounds the
// timeout is two round trips of the path.
const (
	MinProbeTimeout = 150 * time.Millisecond
	MaxProbeTimeout = time.Second
)

// While the liveness of a session is probed, a standby session is opened over
// another path. If the probe fails, the standby replaces the session without a
// further dial. If the session is alive, the standby is dropped, usually before
// its handshake ends. After a dropped standby, the next standby is delayed by
// an exponential backoff between these bounds. The backoff limits the dials
// that a slow peer causes.
const (
	minStandbyBackoff = 250 * time.Millisecond
	maxStandbyBackoff = time.Minute
)

// standbyState links a session and its standby. It is guarded by Tunnel.mu
// unless a field states otherwise.
type standbyState struct {
	probes    int             // running probes of this session
	standby   *session        // of this session; nil: none
	backoff   backoff.Backoff // after a standby that was not needed
	notBefore time.Time       // earliest time of the next standby

	active     *session      // of a standby: the session that is probed; nil otherwise
	firstPaths []Path        // of a standby: the paths of its first dial; immutable
	unneededC  chan struct{} // of a standby: closed when it is not needed; immutable
}

func (s *session) probeTimeout() time.Duration {
	return s.t.cfg.Dialer.probeTimeout(pathConnOf(s.conn))
}

// probeTimeout returns two round trips of the path of p, within the bounds. It
// uses the shorter of the measured round trip and the duration of the
// handshake, which may be slow for other reasons. Through a local gateway the
// handshake takes two round trips, because the gateway dials the next gateway
// during the handshake.
func (d *Dialer) probeTimeout(p *pathConn) time.Duration {
	two := p.handshakeRTT
	if !p.path.Local {
		two *= 2
	}
	if s := d.paths.get(p.dc, p.path.Addr); s.samples >= minSamples {
		two = min(two, 2*s.rtt)
	}
	return min(max(two, MinProbeTimeout), MaxProbeTimeout)
}

// probe sends a ping to the peer of the session. Without a pong within twice
// the probe timeout the session is removed, so that the next stream uses
// another path, and the returned channel is closed. A slow server responds to a
// ping. Over a dead path no pong arrives. The probe has no effect after ctx has
// ended.
func (s *session) probe(ctx context.Context) <-chan struct{} {
	silent := make(chan struct{})
	alive := make(chan struct{})
	s.t.group.spawn(func(context.Context) {
		if _, err := s.mux.Ping(); err == nil { // returns after keepaliveTimeout, or with the session
			close(alive)
		}
	})
	s.t.group.spawn(func(run context.Context) {
		settle := s.openStandby()
		limit := time.NewTimer(2 * s.probeTimeout())
		defer limit.Stop()
		select {
		case <-limit.C:
			if s.t.removeSession(s) {
				s.reportFailure(errSessionSilent)
			}
			close(silent)
			settle(false)
		case <-alive:
			settle(true)
		case <-ctx.Done():
			settle(false)
		case <-run.Done():
			settle(false)
		}
	})
	return silent
}

// openStandby opens a standby while the caller probes s. The caller calls
// settle once, with the result of the probe. If s is dead, the caller removes s
// before it calls settle. The removal promotes the standby. A standby that was
// not promoted is dropped when s is alive, or when the last probe ends.
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
	n := newSession(s.t, s.to, s.addr)
	n.active, n.firstPaths, n.unneededC = s, paths, make(chan struct{})
	if s.t.group.spawn(n.run) {
		s.standby = n
	}
}

func (s *session) dropStandbyLocked(now time.Time) {
	if s.standby != nil {
		close(s.standby.unneededC)
		s.standbyGoneLocked(now)
	}
}

// standbyGoneLocked is called when the standby is not needed or could not be
// opened.
func (s *session) standbyGoneLocked(now time.Time) {
	s.standby.active, s.standby, s.notBefore = nil, nil, now.Add(s.backoff.Next())
}

// promoteStandbyLocked puts the standby of s, if there is one, in the place of
// s, which the caller has freed.
func (s *session) promoteStandbyLocked() {
	if s.standby != nil {
		s.t.sessions[s.to] = s.standby
		s.standby.active, s.standby = nil, nil
	}
}

// dialFailed is called when s could not be opened. If s is a standby,
// dialFailed removes s from its session.
func (s *session) dialFailed() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.active != nil {
		s.active.standbyGoneLocked(time.Now())
	}
}

// dialFirst dials. The first dial of a standby avoids the path of its session.
func (s *session) dialFirst(ctx context.Context, first bool) (*tls.Conn, error) {
	if !first || len(s.firstPaths) == 0 {
		return s.t.dialTarget(ctx, s.to, s.addr, ProtoStream, ProtoConsulStream)
	}
	ctx, cancel := context.WithTimeout(ctx, s.t.limits.dialTimeout)
	defer cancel()
	alpn := []string{ProtoStream, ProtoConsulStream}
	return s.t.cfg.Dialer.dialPaths(ctx, Target{DC: s.to.dc}, s.firstPaths, alpn)
}

// reportFailure records that the path of s failed. It records nothing if the
// standby works over the same first gateway, because the fault is then behind
// that gateway.
func (s *session) reportFailure(err error) {
	s.t.mu.RLock()
	n := s.t.sessions[s.to]
	s.t.mu.RUnlock()
	if n == nil || !n.isReady() || n.conn == nil || pathConnOf(n.conn).path.Addr != pathConnOf(s.conn).path.Addr {
		s.t.cfg.Dialer.ReportFailure(s.conn, err)
	}
}
