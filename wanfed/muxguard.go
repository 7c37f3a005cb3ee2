// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
)

const (
	framePing = 2 // type of a frame that asks for a sign of life, or is one
	flagAsks  = 1 // of a ping
	flagSays  = 2

	// maxPings bounds the pings of a peer that have no answer yet. One is usual: that of the keepalive.
	maxPings = 64
	// mostStreams bounds the streams of an accepted session with those that were refused, or are closed on this side alone. Beyond
	// maxStreams each is refused, by an answer that its opener does not seem to read.
	mostStreams = 4 * maxStreams
)

// What a peer does that asks for more than it takes.
var (
	errPings   = fmt.Errorf("peer sent more than %d pings without taking the answers", maxPings)
	errStreams = fmt.Errorf("peer has more than %d streams open", mostStreams)
)

// isFlood says whether a session ended because its peer asked for too much.
func isFlood(err error) bool { return errors.Is(err, errPings) || errors.Is(err, errStreams) }

// guard follows the frames of a peer, and counts its pings without an answer: yamux answers each in a goroutine of its own, which
// waits until the answer is sent, so who sends pings and does not read could have as many as it likes.
type guard struct {
	head [frameHeader]byte
	n    int    // bytes of head that are there
	body uint32 // bytes of a body that are to come
	open atomic.Int32
}

// reads takes what came, in any pieces. One goroutine calls it.
func (g *guard) reads(b []byte) error {
	for len(b) > 0 {
		if g.body > 0 {
			n := uint32(min(uint64(g.body), uint64(len(b))))
			g.body, b = g.body-n, b[n:]
			continue
		}
		n := copy(g.head[g.n:], b)
		g.n, b = g.n+n, b[n:]
		if g.n < frameHeader {
			return nil
		}
		g.n = 0
		switch {
		case g.head[1] == frameData:
			g.body = binary.BigEndian.Uint32(g.head[8:])
		case isPing(g.head[:], flagAsks) && g.open.Add(1) > maxPings:
			return errPings
		}
	}
	return nil
}

// writes takes the header of a frame that is about to be sent.
func (g *guard) writes(header []byte) {
	if isPing(header, flagSays) {
		g.open.Add(-1)
	}
}

func isPing(header []byte, flag uint16) bool {
	return len(header) == frameHeader && header[1] == framePing && binary.BigEndian.Uint16(header[2:])&flag != 0
}
