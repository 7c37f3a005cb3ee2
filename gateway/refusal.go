// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"log/slog"
	"net/netip"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// Reason is the reason why a connection was not forwarded.
type Reason uint8

// The reasons. Metrics and logs use the names that String returns.
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
var Reasons = [reasons]Reason{
	ReasonNotTLS, ReasonNoSNI, ReasonUnknownSNI, ReasonHelloTimeout, ReasonHelloTooLarge, ReasonHelloCut, ReasonClientGone,
	ReasonUpstreamUnreachable, ReasonLimit, ReasonNoFiles, ReasonDenied, ReasonSourceLimit, ReasonProtocol,
	ReasonProxyHeader, ReasonUpstreamLimit,
}

// TLS alerts of RFC 8446, section 6.2.
const (
	alertInternalError         = 80
	alertMissingExtension      = 109
	alertUnrecognizedName      = 112
	alertNoApplicationProtocol = 120
)

var reasonInfo = [reasons]struct {
	name  string
	alert byte // for the client; 0: none
	hint  string
}{
	ReasonNotTLS: {"not_tls", 0,
		"a gateway forwards only TLS; check what connects from there"},
	ReasonNoSNI: {"no_sni", alertMissingExtension,
		"the client must send the name of the server (SNI), <node>.server.<dc>.<domain>; an IP address is not a name"},
	ReasonUnknownSNI: {"unknown_sni", alertUnrecognizedName,
		"check datacenter and domain in the name, and that its servers or gateways are known here: see /routes"},
	ReasonHelloTimeout: {"hello_timeout", 0,
		"the client connected and sent too little: a slow or filtering network, or a scan"},
	ReasonHelloTooLarge: {"hello_too_large", 0,
		"no usual TLS client sends this much; check what connects from there"},
	ReasonHelloCut: {"hello_cut", 0,
		"the client closed before it had sent a ClientHello; a TCP health check does that"},
	ReasonClientGone: {"client_gone", 0,
		"the client closed before an upstream had answered; it may have used another path"},
	ReasonUpstreamUnreachable: {"upstream_unreachable", alertInternalError,
		"check that the address is right, that a server listens there and that no firewall is between"},
	ReasonLimit: {"limit", 0,
		"this gateway has as many connections as it may have; raise the limit or add a gateway"},
	ReasonNoFiles: {"no_files", 0,
		"the process or the system cannot open more files; raise the limit (ulimit -n), or lower the limit of connections"},
	ReasonDenied: {"denied", 0,
		"the policy of this listener does not allow the client's address"},
	ReasonSourceLimit: {"source_limit", 0,
		"this source has as many connections as one may have; check what connects from there, or raise the limit"},
	ReasonProtocol: {"protocol", alertNoApplicationProtocol,
		"the route accepts only clients that offer one of its protocols (ALPN); check what connects from there"},
	ReasonProxyHeader: {"proxy_header", 0,
		"the load balancer must first send a PROXY header, version 2: enable it there, or remove its address from the list"},
	ReasonUpstreamLimit: {"upstream_limit", alertInternalError,
		"each address of the route has as many connections as one may have; raise the limit, or add an address"},
}

// String returns the reason as metrics and logs show it.
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

// alert returns the TLS record that reports the reason to the client, or nil.
func (r *refusal) alert() []byte {
	if a := reasonInfo[r.reason].alert; a != 0 {
		return []byte{tlsrecord.Alert, 3, 3, 0, 2, 2, a} // TLS 1.2, 2 bytes: fatal, description
	}
	return nil
}

// refuse counts a refusal and logs it. The first refusal of a reason in an
// interval is logged at Info, the others at Debug. Disconnects of clients are
// normal.
func (p *Proxy) refuse(l *Listener, remote netip.AddrPort, r *refusal) {
	l.refused[r.reason].Add(1)
	level := slog.LevelInfo
	if r.reason == ReasonHelloCut || r.reason == ReasonClientGone {
		level = slog.LevelDebug
	}
	attrs := []any{"listener", l.name, "remote", remote, "sni", clip(r.sni), "reason", r.reason.String()}
	if r.err != nil {
		attrs = append(attrs, "err", r.err)
	}
	p.refusals.Log(r.reason, level, "connection refused", append(attrs, "hint", reasonInfo[r.reason].hint)...)
}

// clip bounds the part of a log line that an unauthenticated peer controls.
func clip(sni string) string {
	if len(sni) > maxName {
		return sni[:maxName] + "..."
	}
	return sni
}
