// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// PinTo has the session go over to a certain server of its datacenter, by the way that it takes now: new streams go there, as soon as a
// connection to it is open, and this one is Moved. When there is none to be had, or a better way is being looked for, nothing
// changes. Later dials, after this way broke for example, are to any server again. Only for connections of DialGRPC. It does not block.
func (c *GRPCConn) PinTo(node string) {
	if tlsutil.CheckLabel(node) != nil {
		return
	}
	select {
	case c.s.aim <- node:
	default:
	}
}

// dialNode dials a server of the session's datacenter. It returns nil if that failed, and the gateway is not judged by it: it may be the
// server that is not there any more.
func (s *session) dialNode(ctx context.Context, node string) *tls.Conn {
	ctx, cancel := context.WithTimeout(ctx, s.t.tm.dial)
	defer cancel()
	d, hop := s.t.cfg.Dialer, pathOf(s.conn).hop
	a := &attempt{d: d, dc: s.to.dc, sni: tlsutil.ServerName(node, s.to.dc, d.cfg.Identity.Domain()), alpn: []string{ProtoStream}}
	log := s.t.log.With("peer", (target{dc: s.to.dc, node: node}).String(), "alpn", ProtoStream, "gateway", hop.Addr)
	c, err := a.through(ctx, hop)
	if err != nil {
		log.Debug("no session to this server", "err", err)
		return nil
	}
	log.Debug("session moves to this server")
	return c
}

// succeed puts a session over c in the place of s, which takes no new streams then.
func (s *session) succeed(c *tls.Conn) {
	n := newSession(s.t, s.to, s.addr)
	if n.adopt(c) != nil {
		return
	}
	close(n.readyc)
	s.t.mu.Lock()
	ok := s.t.sessions[s.to] == s && s.t.life.start(n.live)
	if ok {
		s.dropSpareLocked(time.Now())
		s.removeLocked()
		s.t.sessions[s.to] = n
	}
	s.t.mu.Unlock()
	if !ok {
		_ = n.mux.Close()
	}
}
