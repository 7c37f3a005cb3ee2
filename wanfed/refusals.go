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
	"time"

	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/tlsutil"
)

// refusal is why a connection was turned away, or closed for a fault: the log's "reason", and the key of MuxStats.Refused
// and TunnelStats.Closed.
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
	certMissing   refusal = "certificate_missing" // or it could not be read at all
	peerRefusedUs refusal = "refused_by_peer"
	tooSlow       refusal = "timeout"
	hungUp        refusal = "closed_by_peer"
	crowded       refusal = "shed"
	wrongRole     refusal = "role"
	wrongDC       refusal = "datacenter"
	tooMany       refusal = "peer_limit"
	notServed     refusal = "not_served" // its listener was closed
	acceptError   refusal = "accept_error"
	proxyMissing  refusal = "proxy_header"           // of whom one is wanted
	proxyForeign  refusal = "proxy_header_not_taken" // of whom none is

	// Of the tunnel, after the handshake: the keys of TunnelStats.Closed.
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
	unknownSNI:    "connection refused: not for this server; is a gateway's route wrong?",
	oldTLS:        "connection refused: peer has no TLS 1.3",
	certInvalid:   "connection refused: client certificate is not valid",
	certForeign:   "connection refused: client certificate of another CA",
	certNoPeer:    "connection refused: client certificate does not name one peer",
	certMissing:   "connection refused: no usable client certificate",
	peerRefusedUs: "connection refused by the peer during the handshake",
	tooSlow:       "connection refused: handshake took too long",
	hungUp:        "connection closed by the peer before the handshake was done",
	crowded:       "connection refused: unfinished handshake ended to make room for others",
	wrongRole:     "connection refused: this role may not use this protocol",
	wrongDC:       "connection refused: only for servers of this datacenter",
	tooMany:       "connection refused: this peer has as many connections as one may",
	notServed:     "connection refused: the protocol is not served now",
	acceptError:   "accepting a connection failed; trying again",
	proxyMissing:  "connection refused: from there a PROXY header is wanted; is the gateway told to send one?",
	proxyForeign:  "connection refused: from there no PROXY header is taken; is the address missing in proxy_protocol?",

	faultFrame:     "connection closed: peer sent no valid frame",
	faultTruncated: "connection closed by the peer in the middle of a frame or header",
	faultStalled:   "connection closed: peer stopped in the middle of a frame or header",
	faultUnread:    "connection closed: peer does not read",
	faultFlood:     "connection closed: peer asks for more than it takes answers to",
	faultLAN:       "connection closed: LAN gossip from another datacenter",
	faultHeader:    "stream refused: no valid header",
	faultSource:    "stream refused: its source is not the peer",
}

// refusals counts by reason and logs the first of each, then one per refusalLogEvery, so that a scanner cannot flood the
// log.
type refusals struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[refusal]*refusalCount // bounded by the number of reasons
}

type refusalCount struct {
	total  uint64
	quiet  uint64 // since the last line
	logged time.Time
}

const refusalLogEvery = 10 * time.Second

func newRefusals(log *slog.Logger) *refusals {
	return &refusals{log: log, seen: map[refusal]*refusalCount{}}
}

// note counts one refusal and logs it if it is time for that.
func (r *refusals) note(why refusal, remote net.Addr, err error, attrs ...any) {
	now := time.Now()
	r.mu.Lock()
	c := r.seen[why]
	if c == nil {
		c = &refusalCount{}
		r.seen[why] = c
	}
	c.total++
	say, quiet := c.logged.IsZero() || now.Sub(c.logged) >= refusalLogEvery, c.quiet
	if say {
		c.logged, c.quiet = now, 0
	} else {
		c.quiet++
	}
	r.mu.Unlock()

	level := slog.LevelWarn
	if !say || why == hungUp { // a load balancer's health check does no harm
		level = slog.LevelDebug
	}
	if remote != nil {
		attrs = append(attrs, "remote", remote.String())
	}
	if quiet > 0 && say {
		attrs = append(attrs, "unlogged", quiet)
	}
	if err != nil {
		attrs = append(attrs, "err", tlsutil.DescribeError(err))
	}
	r.log.Log(context.Background(), level, refusalText[why], append(attrs, "reason", string(why))...)
}

func (r *refusals) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]uint64, len(r.seen))
	for why, c := range r.seen {
		out[string(why)] = c.total
	}
	return out
}

func (r *refusals) acceptFailed(err error) { r.note(acceptError, nil, err) }

func (r *refusals) handshakeFailed(remote net.Addr, h *hello, err error) {
	why := whyRefused(h, err)
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
	r.note(why, remote, err, attrs...)
}

// What a stranger may put into a log line: protocol ids, and bytes of each and of a name.
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

// hello is what a ClientHello said, so far as it is told.
type hello struct {
	heard    func() // called when it is there; nil: nobody asks
	seen     bool
	sni      string
	alpn     []string
	noTLS13  bool
	noCommon bool // no protocol that we have
}

type helloKey struct{}

// noteHello makes cfg fill in the *hello that the handshake's context carries.
func noteHello(cfg *tls.Config) *tls.Config {
	choose, ids := cfg.GetConfigForClient, cfg.NextProtos
	cfg = cfg.Clone()
	cfg.GetConfigForClient = func(ch *tls.ClientHelloInfo) (*tls.Config, error) {
		if h, ok := ch.Context().Value(helloKey{}).(*hello); ok {
			if h.heard != nil {
				h.heard()
			}
			h.seen, h.sni, h.alpn = true, clip(ch.ServerName), nil
			for _, id := range ch.SupportedProtos[:min(len(ch.SupportedProtos), maxIDs)] {
				h.alpn = append(h.alpn, clip(id))
			}
			h.noTLS13 = !slices.Contains(ch.SupportedVersions, tls.VersionTLS13)
			h.noCommon = len(h.alpn) > 0 && !slices.ContainsFunc(ch.SupportedProtos, func(p string) bool { return slices.Contains(ids, p) })
		}
		if choose == nil {
			return nil, nil
		}
		return choose(ch)
	}
	return cfg
}

// whyRefused classifies a failed handshake, by what the ClientHello said and by the error's type.
func whyRefused(h *hello, err error) refusal {
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
