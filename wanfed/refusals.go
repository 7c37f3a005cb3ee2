// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
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

// refusal is the reason for which a connection was refused, or closed because
// of a fault of the peer. It is the "reason" in the log and the key of
// MuxStats.Refused and TunnelStats.Closed.
type refusal string

const (
	plainText     refusal = "plain_text"
	noALPN        refusal = "no_alpn"
	unknownALPN   refusal = "unknown_alpn"
	unknownSNI    refusal = "unknown_sni"
	oldTLS        refusal = "tls_version"
	certInvalid   refusal = "certificate_invalid" // expired, not yet valid, not for client authentication
	certForeign   refusal = "certificate_foreign_ca"
	certNoPeer    refusal = "certificate_no_peer_name"
	certMissing   refusal = "certificate_missing" // or unreadable
	peerRefusedUs refusal = "refused_by_peer"
	tooSlow       refusal = "timeout"
	hungUp        refusal = "closed_by_peer"
	crowded       refusal = "shed"
	wrongRole     refusal = "role"
	wrongDC       refusal = "datacenter"
	tooMany       refusal = "peer_limit"
	notServed     refusal = "not_served" // the listener was closed
	acceptError   refusal = "accept_error"
	proxyMissing  refusal = "proxy_header"           // required but missing
	proxyForeign  refusal = "proxy_header_not_taken" // present but not permitted

	// Faults after the handshake: the keys of TunnelStats.Closed.
	faultFrame     refusal = "bad_frame"
	faultTruncated refusal = "truncated"
	faultStalled   refusal = "stalled"
	faultUnread    refusal = "echo_not_read"
	faultFlood     refusal = "flood"
	faultLAN       refusal = "lan_from_other_datacenter"
	faultHeader    refusal = "bad_stream_header"
	faultSource    refusal = "bad_stream_source"
)

var refusalText = map[refusal]string{
	plainText:     "connection refused: plain text on the TLS port",
	noALPN:        "connection refused: no protocol (ALPN) offered",
	unknownALPN:   "connection refused: no offered protocol (ALPN) is known",
	unknownSNI:    "connection refused: not for this server; check the routes of the gateways",
	oldTLS:        "connection refused: peer has no TLS 1.3",
	certInvalid:   "connection refused: client certificate is not valid",
	certForeign:   "connection refused: client certificate of another CA",
	certNoPeer:    "connection refused: client certificate does not name one peer",
	certMissing:   "connection refused: no usable client certificate",
	peerRefusedUs: "connection refused by the peer during the handshake",
	tooSlow:       "connection refused: handshake took too long",
	hungUp:        "connection closed by the peer before the handshake was done",
	crowded:       "connection refused: too many handshakes, and this one was slow",
	wrongRole:     "connection refused: this role may not use this protocol",
	wrongDC:       "connection refused: only for servers of this datacenter",
	tooMany:       "connection refused: this peer has reached its connection limit",
	notServed:     "connection refused: the protocol is not served now",
	acceptError:   "cannot accept a connection",
	proxyMissing:  "connection refused: no PROXY header; check that the gateway sends one",
	proxyForeign:  "connection refused: unexpected PROXY header; check that proxy_protocol lists the sender",

	faultFrame:     "connection closed: peer sent an invalid frame",
	faultTruncated: "connection closed by the peer in the middle of a frame or header",
	faultStalled:   "connection closed: peer stopped in the middle of a frame or header",
	faultUnread:    "connection closed: peer does not read",
	faultFlood:     "connection closed: peer sends requests without reading the answers",
	faultLAN:       "connection closed: LAN gossip from another datacenter",
	faultHeader:    "stream refused: invalid header",
	faultSource:    "stream refused: its source is not the peer",
}

// refusals counts refusals by reason and logs them at a limited rate, so that a
// scanner cannot flood the log.
type refusals struct {
	log *ratelog.Logger[refusal]

	mu    sync.Mutex
	total map[refusal]uint64 // bounded by the number of reasons
}

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: ratelog.New[refusal](log, 0), total: map[refusal]uint64{}}
}

// record counts one refusal and logs it.
func (r *refusals) record(why refusal, remote net.Addr, err error, attrs ...any) {
	r.mu.Lock()
	r.total[why]++
	r.mu.Unlock()
	level := slog.LevelWarn
	if why == hungUp { // such as a load balancer's health check
		level = slog.LevelDebug
	}
	if remote != nil {
		attrs = append(attrs, "remote", remote.String())
	}
	if err != nil {
		attrs = append(attrs, "err", tlsutil.DescribeError(err))
	}
	r.log.Log(why, level, refusalText[why], append(attrs, "reason", string(why))...)
}

func (r *refusals) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]uint64, len(r.total))
	for why, n := range r.total {
		out[string(why)] = n
	}
	return out
}

// handshakeFailed records a failed handshake.
func (r *refusals) handshakeFailed(remote net.Addr, h *clientHello, err error) {
	why := classifyFailure(h, err)
	var attrs []any
	switch why {
	case unknownALPN:
		attrs = append(attrs, "alpn", h.alpn)
		err = nil
	case plainText, proxyForeign:
		err = nil
	}
	if h.sni != "" {
		attrs = append(attrs, "sni", h.sni)
	}
	r.record(why, remote, err, attrs...)
}

// Bounds of the data of an unauthenticated peer in a log line: the number of
// protocol ids, the bytes of each id, and the bytes of a name.
const (
	maxIDs  = 8
	maxText = 100
)

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "..."
	}
	return s
}

// clientHello contains the parts of a ClientHello that the log and the
// handshake limit use.
type clientHello struct {
	onSeen   func() // called when the ClientHello arrives; nil: not called
	seen     bool
	sni      string
	alpn     []string
	noTLS13  bool
	noCommon bool // the client offers no protocol id of the Mux
}

type helloKey struct{}

// captureHello returns cfg with a hook that fills the *clientHello in the
// handshake's context.
func captureHello(cfg *tls.Config) *tls.Config {
	choose, ids := cfg.GetConfigForClient, cfg.NextProtos
	cfg = cfg.Clone()
	cfg.GetConfigForClient = func(ch *tls.ClientHelloInfo) (*tls.Config, error) {
		if h, ok := ch.Context().Value(helloKey{}).(*clientHello); ok {
			if h.onSeen != nil {
				h.onSeen()
			}
			h.seen, h.sni, h.alpn = true, clip(ch.ServerName), nil
			for _, id := range ch.SupportedProtos[:min(len(ch.SupportedProtos), maxIDs)] {
				h.alpn = append(h.alpn, clip(id))
			}
			h.noTLS13 = !slices.Contains(ch.SupportedVersions, tls.VersionTLS13)
			h.noCommon = len(h.alpn) > 0 &&
				!slices.ContainsFunc(ch.SupportedProtos, func(p string) bool { return slices.Contains(ids, p) })
		}
		if choose == nil {
			return nil, nil
		}
		return choose(ch)
	}
	return cfg
}

// classifyFailure returns the reason of a failed handshake, from the
// ClientHello and the type of the error.
func classifyFailure(h *clientHello, err error) refusal {
	var (
		header  *proxyHeaderError
		record  tls.RecordHeaderError
		name    *tlsutil.NameError
		op      *net.OpError
		unknown x509.UnknownAuthorityError
		verify  *tls.CertificateVerificationError
		ne      net.Error
	)
	switch {
	case errors.As(err, &header):
		return proxyMissing
	case errors.As(err, &record) && string(record.RecordHeader[:]) == proxyproto.Signature[:len(record.RecordHeader)]:
		return proxyForeign
	case errors.As(err, &record):
		return plainText
	case errors.As(err, &name):
		return unknownSNI
	case errors.Is(err, tlsutil.ErrNoPeerName), errors.Is(err, tlsutil.ErrAmbiguousPeer):
		return certNoPeer
	case errors.As(err, &unknown):
		return certForeign
	case errors.As(err, &verify):
		return certInvalid
	case errors.As(err, &op) && op.Op == "remote error":
		return peerRefusedUs
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return tooSlow
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return hungUp
	case !h.seen:
		return plainText
	case h.noTLS13:
		return oldTLS
	case h.noCommon:
		return unknownALPN
	}
	return certMissing
}
