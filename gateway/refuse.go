// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Reason says why a connection was not forwarded.
type Reason uint8

// The reasons.
const (
	ReasonNotTLS Reason = iota
	ReasonNoSNI
	ReasonUnknownSNI
	ReasonHelloTimeout
	ReasonHelloTooLarge
	ReasonHelloCut
	ReasonClientGone
	ReasonUpstreamUnreachable
	ReasonLimit
	ReasonNoFiles
	ReasonDenied
	ReasonSourceLimit
	ReasonProtocol
	ReasonProxyHeader
	ReasonUpstreamLimit
	reasons
)

// Reasons lists every reason.
var Reasons = [reasons]Reason{ReasonNotTLS, ReasonNoSNI, ReasonUnknownSNI, ReasonHelloTimeout, ReasonHelloTooLarge,
	ReasonHelloCut, ReasonClientGone, ReasonUpstreamUnreachable, ReasonLimit, ReasonNoFiles, ReasonDenied, ReasonSourceLimit,
	ReasonProtocol, ReasonProxyHeader, ReasonUpstreamLimit}

var reasonInfo = [reasons]struct {
	name  string
	alert byte // TLS alert (RFC 8446, section 6.2) that tells the client; 0: none
	hint  string
}{
	ReasonNotTLS: {"not_tls", 0,
		"only TLS passes a gateway; look at what connects from there"},
	ReasonNoSNI: {"no_sni", 109, // missing_extension
		"the client must name the server it wants (SNI) as <node>.server.<dc>.<domain>; an IP address is no name"},
	ReasonUnknownSNI: {"unknown_sni", 112, // unrecognized_name
		"check datacenter and domain in the name, and that its servers or gateways are known here: see /routes"},
	ReasonHelloTimeout: {"hello_timeout", 0,
		"the client connected and said too little; a slow or filtering network, or a scan"},
	ReasonHelloTooLarge: {"hello_too_large", 0,
		"no usual TLS client sends this much; look at what connects from there"},
	ReasonHelloCut: {"hello_cut", 0,
		"the client closed before it had said what it wants; a TCP health check does that"},
	ReasonClientGone: {"client_gone", 0,
		"the client closed before an upstream had answered; it may have found another way"},
	ReasonUpstreamUnreachable: {"upstream_unreachable", 80, // internal_error
		"check that the address is right, that something listens there and that no firewall stands between"},
	ReasonLimit: {"limit", 0,
		"this gateway has as many connections as it may; raise the limit or add a gateway"},
	ReasonNoFiles: {"no_files", 0,
		"the process or the system may open no more files; raise the limit (ulimit -n), or lower that of connections"},
	ReasonDenied: {"denied", 0,
		"the client's address is not among those that may connect to this side"},
	ReasonSourceLimit: {"source_limit", 0,
		"this client's address has as many connections as one may; look at what connects from there, or raise the limit"},
	ReasonProtocol: {"protocol", 120, // no_application_protocol
		"the route takes only clients that offer one of its protocols (ALPN); look at what connects from there"},
	ReasonProxyHeader: {"proxy_header", 0,
		"what connects from there has to send a PROXY header, version 2, first: switch it on there, or take the address off the list"},
	ReasonUpstreamLimit: {"upstream_limit", 80, // internal_error
		"each address of the route has as many connections as one may; raise the limit, or add an address"},
}

// unreachable is the refusal of a client for whom there was no upstream.
func unreachable(sni string, err error) *refusal {
	reason := ReasonUpstreamUnreachable
	if errors.Is(err, errFull) {
		reason = ReasonUpstreamLimit
	}
	return &refusal{reason: reason, sni: sni, err: err}
}

// String gives the reason as metrics and logs show it.
func (r Reason) String() string { return reasonInfo[r].name }

// refusal is the outcome of a connection that is not forwarded.
type refusal struct {
	reason Reason
	sni    string
	err    error
}

// Error implements error.
func (r *refusal) Error() string {
	if r.err == nil {
		return r.reason.String()
	}
	return r.reason.String() + ": " + r.err.Error()
}

// alert is the TLS alert that tells the client the reason; nil if there is none.
func (r *refusal) alert() []byte {
	if a := reasonInfo[r.reason].alert; a != 0 {
		return []byte{21, 3, 3, 0, 2, 2, a} // record: alert, TLS 1.2, 2 bytes: fatal, description
	}
	return nil
}

// tell sends the client the alert, if there is one. The connection is of no further use.
func (r *refusal) tell(client net.Conn) {
	if a := r.alert(); a != nil {
		client.SetWriteDeadline(time.Now().Add(time.Second))
		client.Write(a)
	}
}

// refusalInfoEvery is how often one reason may show at level Info.
const refusalInfoEvery = 10 * time.Second

// refusalLog writes one line per refusal: at Info the first of its reason in a while, at Debug the rest.
type refusalLog struct {
	log *slog.Logger

	mu    sync.Mutex
	last  [reasons]time.Time
	since [reasons]int // refusals that did not show at Info since last
}

// count counts and logs.
func (l *refusalLog) count(s *Listener, remote string, r *refusal) {
	s.refused[r.reason].Add(1)
	level, more := slog.LevelDebug, 0
	if r.reason != ReasonHelloCut && r.reason != ReasonClientGone {
		level, more = l.level(r.reason)
	}
	attrs := []any{"listener", s.name, "remote", remote, "sni", clip(r.sni), "reason", r.reason.String()}
	if r.err != nil {
		attrs = append(attrs, "err", r.err)
	}
	if more > 0 {
		attrs = append(attrs, "not_shown", more)
	}
	l.log.Log(context.Background(), level, "connection refused", append(attrs, "hint", reasonInfo[r.reason].hint)...)
}

func (l *refusalLog) level(r Reason) (slog.Level, int) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last[r]) < refusalInfoEvery {
		l.since[r]++
		return slog.LevelDebug, 0
	}
	more := l.since[r]
	l.last[r], l.since[r] = now, 0
	return slog.LevelInfo, more
}

// clip bounds what a stranger can put into a log line.
func clip(sni string) string {
	if len(sni) > maxName {
		return sni[:maxName] + "..."
	}
	return sni
}
