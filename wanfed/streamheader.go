// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"fmt"
	"strings"

	"github.com/wanfed/wanfed/tlsutil"
)

const (
	streamVersion = 0x51 // first byte of a stream header; other versions have another
	streamHeadLen = 4    // version, pool, target length, source length
	maxSource     = MaxName + 1 + MaxName
	maxStreamHead = streamHeadLen + MaxName + maxSource
)

// streamHeader is the header that the opener of a ProtoStream stream sends
// first.
type streamHeader struct {
	pool   Pool
	target string // node; empty: the server that receives it
	source string // <node>.<dc> of the member that opened the stream; see Tunnel.isTrustedSource
}

var (
	errStreamVersion = errors.New("unknown stream header version")
	errStreamName    = errors.New("bad name in stream header")
)

// parseStreamHead checks the fixed part of a stream header and returns the
// lengths of the target and the source, which follow it.
func parseStreamHead(b [streamHeadLen]byte) (pool Pool, target, source int, err error) {
	pool, target, source = Pool(b[1]), int(b[2]), int(b[3])
	switch {
	case b[0] != streamVersion:
		err = fmt.Errorf("%w %#02x", errStreamVersion, b[0])
	case pool != PoolWAN && pool != PoolLAN && pool != poolGRPC:
		err = fmt.Errorf("%w: %d", errFramePool, pool)
	case target > MaxName:
		err = fmt.Errorf("%w: target of %d bytes, at most %d", errStreamName, target, MaxName)
	case source < 3 || source > maxSource: // "a.b" is the shortest
		err = fmt.Errorf("%w: source of %d bytes, not 3 to %d", errStreamName, source, maxSource)
	}
	return pool, target, source, err
}

// decodeStreamHeader decodes the header at the start of b.
func decodeStreamHeader(b []byte) (streamHeader, error) {
	if len(b) < streamHeadLen {
		return streamHeader{}, errFrameShort
	}
	pool, target, source, err := parseStreamHead([streamHeadLen]byte(b))
	if err != nil {
		return streamHeader{}, err
	}
	b = b[streamHeadLen:]
	if len(b) < target+source {
		return streamHeader{}, errFrameShort
	}
	h := streamHeader{pool: pool, target: string(b[:target]), source: string(b[target : target+source])}
	if h.target != "" {
		if err := tlsutil.CheckLabel(h.target); err != nil {
			return streamHeader{}, fmt.Errorf("%w: target: %w", errStreamName, err)
		}
	}
	node, dc, _ := strings.Cut(h.source, ".")
	if err := errors.Join(tlsutil.CheckLabel(node), tlsutil.CheckLabel(dc)); err != nil {
		return streamHeader{}, fmt.Errorf("%w: source: %w", errStreamName, err)
	}
	return h, nil
}

// append appends the encoded header to dst. The caller has checked its names.
func (h streamHeader) append(dst []byte) []byte {
	dst = append(dst, streamVersion, byte(h.pool), byte(len(h.target)), byte(len(h.source)))
	dst = append(dst, h.target...)
	return append(dst, h.source...)
}

// streamStatus is the byte that answers a stream header.
type streamStatus uint8

const (
	streamOK          streamStatus = 0 // the target has accepted the stream
	streamBadHeader   streamStatus = 1 // unknown version or pool, or names out of bounds
	streamUnknownNode streamStatus = 2 // the target is not a server of the datacenter
	streamNotAllowed  streamStatus = 3 // the peer must not open this stream
	streamNoPool      streamStatus = 4 // the target is not in the pool now, or accepts no gRPC
	streamBusy        streamStatus = 5 // too many streams
	streamUnreachable streamStatus = 6 // the relaying server could not reach the target
)

var streamStatusText = map[streamStatus]string{
	streamOK:          "accepted",
	streamBadHeader:   "the stream header is not valid there; check that both servers run compatible versions",
	streamUnknownNode: "its datacenter has no such server",
	streamNotAllowed:  "this server may not open it",
	streamNoPool:      "it is not in the pool, or accepts no gRPC; it may be starting or stopping",
	streamBusy:        "it has too many streams",
	streamUnreachable: "a server of its datacenter accepted the stream but cannot reach it",
}

// refusedError reports a status other than streamOK.
type refusedError struct {
	status streamStatus
	target string
}

func (e *refusedError) Error() string {
	text, ok := streamStatusText[e.status]
	if !ok {
		text = fmt.Sprintf("status %d", e.status)
	}
	return fmt.Sprintf("stream to %s refused: %s", e.target, text)
}
