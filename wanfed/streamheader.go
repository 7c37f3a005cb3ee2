// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"errors"
	"fmt"
	"io"

	"github.com/wanfed/wanfed/tlsutil"
)

const (
	streamVersion = 0x51 // first byte of a stream header
	streamHeadLen = 4    // version, pool, target length, source length
	maxSource     = MaxName + 1 + MaxName
	maxStreamHead = streamHeadLen + MaxName + maxSource
)

// streamHeader begins each stream of ProtoStream. The opener of the stream
// sends it.
type streamHeader struct {
	pool   Pool
	target string // node; empty: the server that receives the header
	source string // <node>.<dc> of the member that opened the stream; see Tunnel.isTrustedSource
}

var (
	errStreamVersion = errors.New("unknown stream header version")
	errStreamName    = errors.New("bad name in stream header")
)

// readStreamHeader reads and checks a header. It reads no byte after the
// header, and no name whose length is out of bounds.
func readStreamHeader(r io.Reader) (streamHeader, error) {
	b := make([]byte, maxStreamHead)
	if _, err := io.ReadFull(r, b[:streamHeadLen]); err != nil {
		return streamHeader{}, err
	}
	pool, target, source := Pool(b[1]), int(b[2]), int(b[3])
	var err error
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
	if err != nil {
		return streamHeader{}, err
	}
	names := b[streamHeadLen : streamHeadLen+target+source]
	if _, err := io.ReadFull(r, names); err != nil {
		return streamHeader{}, err
	}
	h := streamHeader{pool: pool, target: string(names[:target]), source: string(names[target:])}
	if h.target != "" {
		if err := tlsutil.CheckLabel(h.target); err != nil {
			return streamHeader{}, fmt.Errorf("%w: target: %w", errStreamName, err)
		}
	}
	if err := checkSource(h.source); err != nil {
		return streamHeader{}, fmt.Errorf("%w: source: %w", errStreamName, err)
	}
	return h, nil
}

// append appends the encoded header to dst. The caller has checked the names.
func (h streamHeader) append(dst []byte) []byte {
	dst = append(dst, streamVersion, byte(h.pool), byte(len(h.target)), byte(len(h.source)))
	dst = append(dst, h.target...)
	return append(dst, h.source...)
}

// streamStatus is the byte that the acceptor of a stream sends in response to
// the header. SPEC.md specifies the values.
type streamStatus uint8

const (
	streamOK streamStatus = iota
	streamBadHeader
	streamUnknownNode
	streamNotAllowed
	streamNoPool
	streamBusy
	streamUnreachable
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
