// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
)

// Reason is the reason why a connection was not forwarded.
type Reason uint8

// The reasons. Metrics and logs use the names that String returns.
const (
	ReasonNotTLS              Reason = iota // the first bytes are not TLS
	ReasonNoSNI                             // the ClientHello has no server name
	ReasonUnknownSNI                        // no route has the server name
	ReasonHelloTimeout                      // the ClientHello exceeded Config.HelloTimeout
	ReasonHelloTooLarge                     // the ClientHello exceeded MaxHelloSize
	ReasonHelloCut                          // the client closed before its ClientHello was complete
	ReasonClientGone                        // the client closed before an upstream answered
	ReasonUpstreamUnreachable               // no address of the route answered
	ReasonLimit                             // the gateway is at Config.MaxConns or its limit of memory
	ReasonNoFiles                           // the process or the system is out of files
	ReasonDenied                            // Policy.Allow or Policy.Deny excludes the client
	ReasonSourceLimit                       // the source is at Policy.MaxPerSource
	ReasonSourceRate                        // the source exceeds Policy.MaxRatePerSource
	ReasonProtocol                          // the client offers no protocol of Route.Protocols
	ReasonProxyHeader                       // the PROXY header is missing, not permitted or invalid
	ReasonUpstreamLimit                     // each address of the route is at Config.MaxPerUpstream
	ReasonLoop                              // the connection came back to this gateway through another one
	reasons                                 // the number of reasons
)

// TLS alerts of RFC 8446, section 6.2.
const (
	alertInternalError         = 80
	alertMissingExtension      = 109
	alertUnrecognizedName      = 112
	alertNoApplicationProtocol = 120
)

var reasonInfo = [reasons]struct {
	name  string
	alert byte   // for the client; 0: none
	hint  string // for the log: the usual cause or the remedy
}{
	ReasonNotTLS: {"not_tls", 0,
		"a gateway forwards only TLS; check which program connects from this address"},
	ReasonNoSNI: {"no_sni", alertMissingExtension,
		"the client must send the name of the server (SNI), <node>.server.<dc>.<domain>; an IP address is not a name"},
	ReasonUnknownSNI: {"unknown_sni", alertUnrecognizedName,
		"check the datacenter and the domain in the name; GET /routes of the admin address lists the known names"},
	ReasonHelloTimeout: {"hello_timeout", 0,
		"the ClientHello did not arrive in time; usual causes are a slow network, a firewall or a port scan"},
	ReasonHelloTooLarge: {"hello_too_large", 0,
		"usual TLS clients send less; check which program connects from this address"},
	ReasonHelloCut: {"hello_cut", 0,
		"the client closed before its ClientHello was complete, as a TCP health check does"},
	ReasonClientGone: {"client_gone", 0,
		"the client closed before an upstream answered; it may have used another path"},
	ReasonUpstreamUnreachable: {"upstream_unreachable", alertInternalError,
		"check that the address is right, that a server listens there and that no firewall blocks the connection"},
	ReasonLimit: {"limit", 0,
		"the gateway is at its limit of connections or memory; raise the limit, or add a gateway"},
	ReasonNoFiles: {"no_files", 0,
		"the process or the system cannot open more files; raise the limit (ulimit -n), or lower the limit of " +
			"connections"},
	ReasonDenied: {"denied", 0,
		"the policy of this listener does not allow the client's address"},
	ReasonSourceLimit: {"source_limit", 0,
		"this source is at its limit of connections; check which program connects from there, or raise the limit"},
	ReasonSourceRate: {"source_rate", 0,
		"this source opens connections too fast; check which program connects from there, or raise the limit"},
	ReasonProtocol: {"protocol", alertNoApplicationProtocol,
		"the route accepts only clients that offer one of its protocols (ALPN); check which program connects"},
	ReasonProxyHeader: {"proxy_header", 0,
		"the load balancer must first send a PROXY header, version 2: enable it there, or remove its address from " +
			"the list"},
	ReasonUpstreamLimit: {"upstream_limit", alertInternalError,
		"each address of the route is at its limit of connections; raise the limit, or add an address"},
	// Without an alert: a gateway that forwards an alert would take it for the
	// response of a server, and end its attempts at other addresses.
	ReasonLoop: {"loop", 0,
		"this gateway is already forwarding the same connection: an address of a datacenter leads back to a gateway of " +
			"this one; check the WAN addresses of its gateways"},
}

// String returns the reason as metrics and logs show it.
func (r Reason) String() string { return reasonInfo[r].name }

// refusal is the error for a connection that is not forwarded.
type refusal struct {
	reason Reason
	sni    string // empty: unknown
	err    error  // details; nil: none
}

// Error implements error.
func (r *refusal) Error() string { return fmt.Sprintf("%v: %v", r.reason, r.err) }

// alert returns the TLS record that reports the reason to the client, or nil.
func (r *refusal) alert() []byte {
	if a := reasonInfo[r.reason].alert; a != 0 {
		return []byte{tlsrecord.Alert, 3, 3, 0, 2, 2, a} // TLS 1.2, 2 bytes: fatal, description
	}
	return nil
}

// refuse counts a refusal and logs it. For each reason, ratelog.Logger logs the
// first refusal in an interval at Info and the others at Debug. Disconnects of
// clients are normal and always logged at Debug.
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

// clip bounds a string from an unauthenticated peer for a log line.
func clip(s string) string {
	if len(s) > maxName {
		return s[:maxName] + "..."
	}
	return s
}
