// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/tlsutil"
)

// Limits of ProtoGossip frames, in bytes.
const (
	// MaxPacket is the largest packet that a frame carries. The packets of a
	// server have at most 5 KiB.
	MaxPacket = 8 << 10
	// MaxName is the longest node name: one DNS label.
	MaxName = 63

	frameHeadLen = 6 // u32 length, u8 pool, u8 name length
	lengthLen    = 4 // the length field, which does not count its own bytes
	echoLen      = 8 // payload of an echo frame
	minRelayed   = 5 // u8 length of the source, source "a.b", and a packet of one byte

	// maxConsulPacket bounds a ProtoConsulPacket packet. Consul's packets have
	// at most 1400 bytes.
	maxConsulPacket = 64 << 10
)

// frameHead is the fixed part of a frame. The target name follows the head, and
// the packet follows the name.
type frameHead struct {
	pool   Pool
	name   int // length of the target name
	packet int // length of the packet
}

var (
	errFramePool   = errors.New("unknown pool")
	errFrameName   = errors.New("bad target name")
	errFrameLength = errors.New("length out of bounds")
	errFrameShort  = errors.New("frame is truncated")
)

// parseFrameHead checks the pool and the lengths of a frame. A reader calls
// parseFrameHead before it allocates memory for the frame.
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
	case h.pool == poolRelayed:
		if most := int64(MaxPacket + 1 + maxSource); rest < minRelayed || rest > most {
			return h, fmt.Errorf("%w: a relayed packet of %d bytes, not %d to %d", errFrameLength, rest, minRelayed, most)
		}
	case h.pool != PoolWAN && h.pool != PoolLAN:
		return h, fmt.Errorf("%w: %d", errFramePool, h.pool)
	case rest < 1 || rest > MaxPacket:
		return h, fmt.Errorf("%w: a packet of %d bytes, not 1 to %d", errFrameLength, rest, MaxPacket)
	}
	h.packet = int(rest)
	return h, nil
}

// appendFrame appends one frame to dst. The caller has checked the lengths of
// name and packet.
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

// appendEcho appends an echo frame with payload n.
func appendEcho(dst []byte, n uint64) []byte {
	return appendFrame(dst, poolEcho, "", binary.BigEndian.AppendUint64(make([]byte, 0, echoLen), n))
}

// relayedPacket returns the payload of a relayed frame: the name of the sender
// after its length, and the packet. The caller has checked the lengths.
func relayedPacket(source string, packet []byte) []byte {
	b := append(make([]byte, 0, 1+len(source)+len(packet)), byte(len(source)))
	return append(append(b, source...), packet...)
}

// splitRelayed returns the sender, which is a <node>.<dc>, and the packet of a
// relayed frame.
func splitRelayed(b []byte) (source string, packet []byte, err error) {
	if len(b) < 1 || len(b) < 2+int(b[0]) || len(b)-1-int(b[0]) > MaxPacket {
		return "", nil, fmt.Errorf("%w: a relayed packet of %d bytes", errFrameLength, len(b))
	}
	source = string(b[1 : 1+b[0]])
	if err := checkSource(source); err != nil {
		return "", nil, fmt.Errorf("%w: source: %w", errFrameName, err)
	}
	return source, b[1+len(source):], nil
}

// checkSource returns an error unless name is a <node>.<dc>.
func checkSource(name string) error {
	node, dc, _ := strings.Cut(name, ".")
	return errors.Join(tlsutil.CheckLabel(node), tlsutil.CheckLabel(dc))
}

// withoutSources replaces the relayed frames of a batch by frames without a
// sender, for a server that has only ProtoGossip.
func withoutSources(frames []byte) []byte {
	out := make([]byte, 0, len(frames))
	for len(frames) > 0 {
		f, err := decodeFrame(frames)
		if err != nil {
			return out // impossible: the queue encoded the frame
		}
		if f.pool != poolRelayed {
			out = append(out, frames[:f.size]...)
		} else if _, packet, err := splitRelayed(f.packet); err == nil {
			out = appendFrame(out, PoolWAN, string(f.name), packet)
		}
		frames = frames[f.size:]
	}
	return out
}

// frame is a decoded frame. The fields name and packet alias the decoded bytes.
type frame struct {
	pool   Pool
	name   []byte
	packet []byte
	size   int // of the whole frame
}

// decodeFrame decodes the first frame of b.
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

// checkTargetName checks a name from the wire. A name is a DNS label, or empty
// for the server that receives the frame.
func checkTargetName(name []byte) error {
	if err := tlsutil.CheckLabel(string(name)); len(name) > 0 && err != nil {
		return fmt.Errorf("%w: %w", errFrameName, err)
	}
	return nil
}

// parseConsulLength parses the length that precedes a ProtoConsulPacket packet.
func parseConsulLength(b [lengthLen]byte) (int, error) {
	n := binary.BigEndian.Uint32(b[:])
	if n == 0 || n > maxConsulPacket {
		return 0, fmt.Errorf("%w: a packet of %d bytes, not 1 to %d", errFrameLength, n, maxConsulPacket)
	}
	return int(n), nil
}

// appendConsulFrames converts ProtoGossip frames to ProtoConsulPacket frames
// for one node. It skips echoes and packets of the LAN pool, because Consul's
// framing has neither. The frames of a sendQueue are always complete.
func appendConsulFrames(dst, frames []byte) []byte {
	for len(frames) > 0 {
		f, err := decodeFrame(frames)
		if err != nil {
			return dst
		}
		if f.pool == PoolWAN {
			dst = binary.BigEndian.AppendUint32(dst, uint32(len(f.packet)))
			dst = append(dst, f.packet...)
		}
		frames = frames[f.size:]
	}
	return dst
}
