// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/wanfed/wanfed/tlsutil"
)

// Limits of ProtoGossip frames, in bytes.
const (
	// MaxPacket is the largest packet a frame carries.
	MaxPacket = 64 << 10
	// MaxName is the longest node name: one DNS label.
	MaxName = 63

	frameHeadLen = 6 // u32 length, u8 pool, u8 name length
	lengthLen    = 4 // of which this is not counted by length itself
	echoLen      = 8
	maxFrame     = frameHeadLen + MaxName + MaxPacket
)

// poolEcho marks a frame that carries no packet: the dialer asks, and the listener sends the same frame back.
const poolEcho Pool = 0

// frameHead is the fixed part of a frame.
type frameHead struct {
	pool   Pool
	name   int // bytes of the target's name, which follow the head
	packet int // bytes of the packet, which follow the name
}

// What is wrong with a frame.
var (
	errFramePool   = errors.New("unknown pool")
	errFrameName   = errors.New("bad target name")
	errFrameLength = errors.New("length out of bounds")
	errFrameShort  = errors.New("frame is cut short")
)

// parseFrameHead checks all that the head alone tells, so that nothing is read, or allocated, for a frame out of bounds.
func parseFrameHead(b [frameHeadLen]byte) (frameHead, error) {
	length := binary.BigEndian.Uint32(b[:])
	h := frameHead{pool: Pool(b[4]), name: int(b[5])}
	if h.name > MaxName {
		return h, fmt.Errorf("%w: %d bytes, at most %d", errFrameName, h.name, MaxName)
	}
	rest := int64(length) - int64(frameHeadLen-lengthLen) - int64(h.name)
	switch {
	case h.pool == poolEcho:
		if h.name != 0 || rest != echoLen {
			return h, fmt.Errorf("%w: an echo frame of length %d", errFrameLength, length)
		}
	case h.pool != PoolWAN && h.pool != PoolLAN:
		return h, fmt.Errorf("%w: %d", errFramePool, h.pool)
	case rest < 1 || rest > MaxPacket:
		return h, fmt.Errorf("%w: a packet of %d bytes, not 1 to %d", errFrameLength, rest, MaxPacket)
	}
	h.packet = int(rest)
	return h, nil
}

// appendFrame adds one frame to dst. The caller has checked name and packet.
func appendFrame(dst []byte, pool Pool, name string, packet []byte) []byte {
	size := frameHeadLen + len(name) + len(packet)
	n := len(dst)
	dst = slices.Grow(dst, size)[:n+size]
	b := dst[n:]
	binary.BigEndian.PutUint32(b, uint32(size-lengthLen))
	b[4], b[5] = byte(pool), byte(len(name))
	copy(b[frameHeadLen:], name)
	copy(b[frameHeadLen+len(name):], packet)
	return dst
}

// appendEcho adds the frame that asks for, or is, the echo of n.
func appendEcho(dst []byte, n uint64) []byte {
	return appendFrame(dst, poolEcho, "", binary.BigEndian.AppendUint64(make([]byte, 0, echoLen), n))
}

// frame is one decoded frame; name and packet alias the bytes it was decoded from.
type frame struct {
	pool   Pool
	name   []byte
	packet []byte
	size   int // of the whole frame
}

// decodeFrame reads the first frame of b.
func decodeFrame(b []byte) (frame, error) {
	if len(b) < frameHeadLen {
		return frame{}, fmt.Errorf("%w: %d of %d bytes of its head", errFrameShort, len(b), frameHeadLen)
	}
	h, err := parseFrameHead([frameHeadLen]byte(b))
	if err != nil {
		return frame{}, err
	}
	size := frameHeadLen + h.name + h.packet
	if len(b) < size {
		return frame{}, fmt.Errorf("%w: %d of %d bytes", errFrameShort, len(b), size)
	}
	name := b[frameHeadLen : frameHeadLen+h.name]
	if err := checkTargetName(name); err != nil {
		return frame{}, err
	}
	return frame{pool: h.pool, name: name, packet: b[frameHeadLen+h.name : size], size: size}, nil
}

// checkTargetName says whether name, from the wire, can name a node: a DNS label, or empty for whoever receives it.
func checkTargetName(name []byte) error {
	if len(name) == 0 {
		return nil
	}
	if err := tlsutil.CheckLabel(string(name)); err != nil {
		return fmt.Errorf("%w: %w", errFrameName, err)
	}
	return nil
}
