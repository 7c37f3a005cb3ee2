// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"fmt"
)

// maxConsulPacket bounds a ProtoConsulPacket packet, in bytes.
const maxConsulPacket = 4 << 20

// parseConsulLength reads the length that precedes a ProtoConsulPacket packet.
func parseConsulLength(b [lengthLen]byte) (int, error) {
	n := binary.BigEndian.Uint32(b[:])
	if n == 0 || n > maxConsulPacket {
		return 0, fmt.Errorf("%w: a packet of %d bytes, not 1 to %d", errFrameLength, n, maxConsulPacket)
	}
	return int(n), nil
}

// appendConsulFrames turns ProtoGossip frames into ProtoConsulPacket frames for one node. What Consul has no place for,
// echoes and the LAN pool, is left out. frames come from a frameQueue, so they are whole.
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
