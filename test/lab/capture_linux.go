// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Capture reads every frame on a bridge from its start to Stop.
type Capture struct {
	fd     int
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	flows  map[Flow][]*stream
	other  map[string]int // count of other frames than TCP, ARP and IPv6 neighbour discovery, by kind
	frames int
	// dropped is the number of frames that the kernel did not pass to the
	// capture.
	dropped int
	err     error
}

// Flow is one direction of a TCP connection.
type Flow struct{ From, To netip.AddrPort }

// stream is one direction of one connection. A port that is used again makes a
// second stream of the same flow.
type stream struct {
	syn      uint32 // sequence number of the SYN
	segments []segment
}

type segment struct {
	seq  uint32
	data []byte
}

// StartCapture captures on the bridge of a namespace until the test ends.
func StartCapture(t testing.TB, ns string) *Capture {
	t.Helper()
	c := &Capture{flows: map[Flow][]*stream{}, other: map[string]int{}}
	err := In(ns, func() (err error) {
		proto := int(htons(unix.ETH_P_ALL))
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		// Each frame is received once, at the veth port of the bridge where it
		// enters.
		tv := unix.Timeval{Usec: 50_000}
		return unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	})
	if err != nil {
		t.Fatalf("capture in %s: %v", ns, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.wg.Go(func() { c.read(ctx) })
	t.Cleanup(func() { c.Stop() })
	return c
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

func (c *Capture) read(ctx context.Context) {
	buf := make([]byte, 1<<17)
	for ctx.Err() == nil {
		n, from, err := unix.Recvfrom(c.fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			return
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue // the same frame, sent out of another port
		}
		c.frame(buf[:n])
	}
}

// Stop ends the capture and closes its socket. It may be called more than once.
func (c *Capture) Stop() {
	c.cancel()
	c.wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd >= 0 {
		st, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			c.err = cmp.Or(c.err, err)
		} else {
			c.dropped = int(st.Drops)
		}
		unix.Close(c.fd)
		c.fd = -1
	}
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	protoTCP  = 6
	protoICM6 = 58
	flagSYN   = 2
)

func (c *Capture) frame(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames++
	if len(b) < 14 {
		c.other["short frame"]++
		return
	}
	switch typ := binary.BigEndian.Uint16(b[12:]); typ {
	case etherARP:
	case etherIPv6:
		if len(b) >= 14+40 && (b[14+6] == protoICM6 || b[14+6] == 0) {
			return // neighbour discovery by the kernel
		}
		c.other["IPv6"]++
	case etherIPv4:
		c.ipv4(b[14:])
	default:
		c.other[fmt.Sprintf("ethertype %#x", typ)]++
	}
}

func (c *Capture) ipv4(b []byte) {
	if len(b) < 20 || int(b[0]&15)*4 > len(b) {
		c.other["short IPv4"]++
		return
	}
	total := int(binary.BigEndian.Uint16(b[2:]))
	head := int(b[0]&15) * 4
	if b[9] != protoTCP || total > len(b) || total < head+20 {
		c.other[fmt.Sprintf("IPv4 protocol %d", b[9])]++
		return
	}
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	tcp := b[head:total]
	f := Flow{
		From: netip.AddrPortFrom(src, binary.BigEndian.Uint16(tcp)),
		To:   netip.AddrPortFrom(dst, binary.BigEndian.Uint16(tcp[2:])),
	}
	seq, begins := binary.BigEndian.Uint32(tcp[4:]), tcp[13]&flagSYN != 0
	ss := c.flows[f]
	if len(ss) == 0 || begins && ss[len(ss)-1].syn != seq { // not a SYN that is sent again
		ss = append(ss, &stream{syn: seq})
		c.flows[f] = ss
	}
	off := int(tcp[12]>>4) * 4
	if off > len(tcp) || len(tcp) == off {
		return
	}
	s := ss[len(ss)-1]
	s.segments = append(s.segments, segment{seq, slices.Clone(tcp[off:])})
}

// Report summarizes a capture.
type Report struct {
	Frames  int
	Flows   []Flow
	Bytes   int // of TCP payload
	Records int // of TLS
	Other   map[string]int
}

// Check stops the capture. It fails the test unless all traffic is TCP, every
// flow has port on exactly one end, and every flow consists of TLS records (RFC
// 8446 section 5.1).
func (c *Capture) Check(t testing.TB, port uint16) Report {
	t.Helper()
	c.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		t.Errorf("capture: %v", c.err)
	}
	r := Report{Frames: c.frames, Other: c.other}
	for f, ss := range c.flows {
		r.Flows = append(r.Flows, f)
		if (f.From.Port() == port) == (f.To.Port() == port) {
			t.Errorf("flow %v -> %v is not to or from port %d", f.From, f.To, port)
		}
		for _, s := range ss {
			records, bytes, err := tlsRecords(s)
			if err != nil {
				t.Errorf("flow %v -> %v: %v; the kernel dropped %d frames of the capture", f.From, f.To, err, c.dropped)
			}
			r.Records, r.Bytes = r.Records+records, r.Bytes+bytes
		}
	}
	if len(c.other) > 0 {
		t.Errorf("other traffic than TCP = %v, want none", c.other)
	}
	return r
}

// tlsRecords reassembles the segments of a flow and counts its records. The end
// of the capture may truncate the last record.
func tlsRecords(s *stream) (records, n int, err error) {
	if len(s.segments) == 0 {
		return 0, 0, nil
	}
	first := s.segments[0].seq
	for _, seg := range s.segments {
		if int32(seg.seq-first) < 0 {
			first = seg.seq
		}
	}
	segs := slices.Clone(s.segments)
	slices.SortStableFunc(segs, func(a, b segment) int { return cmp.Compare(a.seq-first, b.seq-first) })
	var data []byte
	for _, seg := range segs {
		at := int(seg.seq - first)
		switch {
		case at > len(data):
			return records, len(data), fmt.Errorf("capture has a gap at byte %d", len(data))
		case at+len(seg.data) > len(data):
			data = append(data[:at], seg.data...)
		}
	}
	for b := data; len(b) >= 5; {
		typ, major, size := b[0], b[1], int(binary.BigEndian.Uint16(b[3:]))
		if typ < 20 || typ > 23 || major != 3 || size == 0 || size > 16384+256 {
			return records, len(data), fmt.Errorf("byte %d does not begin a TLS record: % x", len(data)-len(b),
				b[:min(16, len(b))])
		}
		records++
		if len(b) < 5+size {
			break
		}
		b = b[5+size:]
	}
	return records, len(data), nil
}
