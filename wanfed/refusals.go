// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/tlsutil"
)

// refusal is the reason for which a connection or stream was refused, or closed
// because of a fault of the peer.
type refusal struct {
	id   string // "reason" in the log; key of MuxStats.Refused and TunnelStats.Closed
	text string // log message
}

// String returns the id of r, or "none" if r is nil.
func (r *refusal) String() string {
	if r == nil {
		return "none"
	}
	return r.id
}

// Reasons of the Mux, counted in MuxStats.Refused.
var (
	refusedPlainText   = &refusal{"plain_text", "connection refused: plain text on the TLS port"}
	refusedNoALPN      = &refusal{"no_alpn", "connection refused: no protocol (ALPN) offered"}
	refusedUnknownALPN = &refusal{"unknown_alpn", "connection refused: no offered protocol (ALPN) is known"}
	refusedUnknownSNI  = &refusal{"unknown_sni",
		"connection refused: not for this server; check the routes of the gateways"}
	refusedOldTLS = &refusal{"tls_version", "connection refused: peer has no TLS 1.3"}
	// The certificate is expired, not yet valid, or not for client
	// authentication.
	refusedCertInvalid = &refusal{"certificate_invalid", "connection refused: client certificate is not valid"}
	refusedCertRevoked = &refusal{"certificate_revoked", "connection refused: client certificate is revoked"}
	refusedCertOtherCA = &refusal{"certificate_foreign_ca", "connection refused: client certificate of another CA"}
	refusedCertNoPeer  = &refusal{"certificate_no_peer_name",
		"connection refused: client certificate does not name one peer"}
	// The client sent no certificate, or an unreadable certificate.
	refusedCertMissing   = &refusal{"certificate_missing", "connection refused: no usable client certificate"}
	refusedByPeer        = &refusal{"refused_by_peer", "connection refused by the peer during the handshake"}
	refusedTimeout       = &refusal{"timeout", "connection refused: handshake took too long"}
	refusedClosed        = &refusal{"closed_by_peer", "connection closed by the peer before the handshake was done"}
	refusedShed          = &refusal{"shed", "connection refused: too many handshakes, and this one was slow"}
	refusedRole          = &refusal{"role", "connection refused: this role may not use this protocol"}
	refusedDC            = &refusal{"datacenter", "connection refused: only for servers of this datacenter"}
	refusedPeerLimit     = &refusal{"peer_limit", "connection refused: this peer has reached its connection limit"}
	refusedNotServed     = &refusal{"not_served", "connection refused: the protocol is not served now"}
	acceptFailed         = &refusal{"accept_error", "cannot accept a connection"}
	refusedNoProxyHeader = &refusal{"proxy_header",
		"connection refused: no PROXY header; check that the gateway sends one"}
	refusedProxyHeader = &refusal{"proxy_header_not_taken",
		"connection refused: PROXY header from an address that is not a registered gateway"}
)

// Faults of a peer after the handshake, counted in TunnelStats.Closed.
var (
	faultFrame     = &refusal{"bad_frame", "connection closed: peer sent an invalid frame"}
	faultTruncated = &refusal{"truncated", "connection closed by the peer in the middle of a frame or header"}
	faultStalled   = &refusal{"stalled", "connection closed: peer stopped in the middle of a frame or header"}
	faultUnread    = &refusal{"echo_not_read", "connection closed: peer does not read"}
	faultFlood     = &refusal{"flood", "connection closed: peer sends requests without reading the responses"}
	faultBacklog   = &refusal{"backlog", "connection closed: peer's datacenter sends more than this server reads"}
	faultLAN       = &refusal{"lan_from_other_datacenter", "connection closed: LAN gossip from another datacenter"}
	faultHeader    = &refusal{"bad_stream_header", "stream refused: invalid header"}
	faultSource    = &refusal{"bad_stream_source", "stream refused: the source in its header is not the peer"}
)

// refusals counts refusals by reason and logs them at a limited rate. A port
// scanner therefore cannot flood the log.
type refusals struct {
	log *ratelog.Logger[*refusal]

	mu    sync.Mutex
	total map[*refusal]uint64
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: ratelog.New[*refusal](log), total: map[*refusal]uint64{}}
}

// record counts and logs one refusal. remote and err may be nil.
func (r *refusals) record(reason *refusal, remote net.Addr, err error, attrs ...any) {
	r.mu.Lock()
	r.total[reason]++
	r.mu.Unlock()
	level := slog.LevelWarn
	if reason == refusedClosed { // for example the health check of a load balancer
		level = slog.LevelDebug
	}
	if remote != nil {
		attrs = append(attrs, "remote", remote.String())
	}
	if err != nil {
		attrs = append(attrs, "err", tlsutil.DescribeError(err))
	}
	r.log.Log(reason, level, reason.text, append(attrs, "reason", reason.id)...)
}

// counts returns the number of refusals by the id of the reason.
func (r *refusals) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]uint64, len(r.total))
	for reason, n := range r.total {
		out[reason.id] = n
	}
	return out
}

// handshakeFailed records that a handshake failed with err.
func (r *refusals) handshakeFailed(remote net.Addr, h *clientHello, err error) {
	reason := classifyFailure(h, err)
	var attrs []any
	switch reason { // err adds nothing to some reasons
	case refusedUnknownALPN:
		attrs, err = append(attrs, "alpn", h.alpn), nil
	case refusedPlainText, refusedProxyHeader:
		err = nil
	}
	if h.sni != "" {
		attrs = append(attrs, "sni", h.sni)
	}
	r.record(reason, remote, err, attrs...)
}

// Bounds of the text from an unauthenticated peer in one log line.
const (
	maxLoggedIDs  = 8   // protocol ids
	maxLoggedText = 100 // bytes of a protocol id, and of a server name
)

func clip(s string) string {
	if len(s) > maxLoggedText {
		return s[:maxLoggedText] + "..."
	}
	return s
}

// clientHello contains the parts of a ClientHello that refusals and
// handshakeLimit use.
type clientHello struct {
	onSeen        func() // called when the ClientHello arrives; nil: not called
	seen          bool   // the ClientHello has arrived
	sni           string
	alpn          []string
	noTLS13       bool
	noCommonProto bool // the client offers protocol ids, but none of the Mux
}

type helloKey struct{}

// captureHello returns a copy of cfg. During a handshake the copy fills the
// *clientHello that the context of the handshake has under helloKey.
func captureHello(cfg *tls.Config) *tls.Config {
	choose, ids := cfg.GetConfigForClient, cfg.NextProtos
	cfg = cfg.Clone()
	cfg.GetConfigForClient = func(ch *tls.ClientHelloInfo) (*tls.Config, error) {
		if h, ok := ch.Context().Value(helloKey{}).(*clientHello); ok {
			if h.onSeen != nil {
				h.onSeen()
			}
			h.seen, h.sni, h.alpn = true, clip(ch.ServerName), nil
			for _, id := range ch.SupportedProtos[:min(len(ch.SupportedProtos), maxLoggedIDs)] {
				h.alpn = append(h.alpn, clip(id))
			}
			h.noTLS13 = !slices.Contains(ch.SupportedVersions, tls.VersionTLS13)
			h.noCommonProto = len(h.alpn) > 0 &&
				!slices.ContainsFunc(ch.SupportedProtos, func(p string) bool { return slices.Contains(ids, p) })
		}
		if choose == nil {
			return nil, nil
		}
		return choose(ch)
	}
	return cfg
}

// classifyFailure returns the reason for which a handshake failed with err. For
// errors without a type of their own it uses the ClientHello.
func classifyFailure(h *clientHello, err error) *refusal {
	var (
		record    tls.RecordHeaderError
		name      *tlsutil.NameError
		op        *net.OpError
		unknownCA x509.UnknownAuthorityError
		verify    *tls.CertificateVerificationError
		revoked   *tlsutil.RevokedError
	)
	switch {
	case errors.Is(err, errProxyHeader):
		return refusedNoProxyHeader
	case errors.Is(err, errProxySender):
		return refusedProxyHeader
	case errors.As(err, &record) && string(record.RecordHeader[:]) == proxyproto.Signature[:len(record.RecordHeader)]:
		return refusedProxyHeader
	case errors.As(err, &record):
		return refusedPlainText
	case errors.As(err, &name):
		return refusedUnknownSNI
	case errors.Is(err, tlsutil.ErrNoPeerName), errors.Is(err, tlsutil.ErrAmbiguousPeer):
		return refusedCertNoPeer
	case errors.As(err, &revoked):
		return refusedCertRevoked
	case errors.As(err, &unknownCA):
		return refusedCertOtherCA
	case errors.As(err, &verify):
		return refusedCertInvalid
	case errors.As(err, &op) && op.Op == "remote error":
		return refusedByPeer
	case isTimeout(err):
		return refusedTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return refusedClosed
	case !h.seen:
		return refusedPlainText
	case h.noTLS13:
		return refusedOldTLS
	case h.noCommonProto:
		return refusedUnknownALPN
	}
	return refusedCertMissing
}
