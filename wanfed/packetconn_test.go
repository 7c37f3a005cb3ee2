// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// scriptConn is a connection that returns the bytes of in, then io.EOF. It
// records written bytes in out.
type scriptConn struct {
	net.Conn
	in    []byte
	chunk int // most bytes per Read
	out   []byte
}

func (c *scriptConn) Read(b []byte) (int, error) {
	if len(c.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.in[:min(len(c.in), c.chunk)])
	c.in = c.in[n:]
	return n, nil
}

func (c *scriptConn) Write(b []byte) (int, error) {
	c.out = append(c.out, b...)
	return len(b), nil
}

func (*scriptConn) RemoteAddr() net.Addr             { return nameAddr("far") }
func (*scriptConn) SetReadDeadline(time.Time) error  { return nil }
func (*scriptConn) SetWriteDeadline(time.Time) error { return nil }

// packetReader is srv1 of dc1. It reads packet connections from scripts.
type packetReader struct {
	tun *Tunnel
	tr  *Transport
}

func newPacketReader(t testing.TB) *packetReader {
	t.Helper()
	n := newNode(t, newAuthority(t), "srv1", "dc1")
	tun, err := NewTunnel(TunnelConfig{Identity: n.id, Dialer: n.d, Mux: n.mux, Advertise: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	return &packetReader{tun, tun.Transport(PoolWAN)}
}

// read receives in from a server of dc2. It returns the packets for memberlist,
// the echoes, and the results of packetConn.run.
func (r *packetReader) read(t testing.TB, in []byte, chunk int, consul bool) (got []string, out []byte, reason *refusal,
	err error) {
	t.Helper()
	c := &scriptConn{in: in, chunk: chunk}
	pc := r.tun.newPacketConn(c, tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"})
	frame := pc.readFrame
	if consul {
		frame = pc.readConsulFrame
	}
	reason, err = pc.run(frame)
	for len(r.tr.packets) > 0 {
		p := <-r.tr.packets
		if cap(p.Buf) != len(p.Buf) {
			t.Errorf("a packet of %d bytes has capacity %d, want equal", len(p.Buf), cap(p.Buf))
		}
		got = append(got, string(p.Buf))
		clear(p.Buf) // the receiver owns it
	}
	return got, c.out, reason, err
}

// Packets, echoes and packets for unknown nodes are handled in order,
// independent of the sizes of the reads.
func TestPacketConn(t *testing.T) {
	r := newPacketReader(t)
	large := bytes.Repeat([]byte("L"), MaxPacket)
	var in, consul []byte
	var want []string
	for i := range 384 {
		p := bytes.Repeat([]byte{byte(i)}, 1+i*7)
		want = append(want, string(p))
		in = appendFrame(in, PoolWAN, []string{"", "srv1"}[i%2], p)
		consul = appendConsulFrames(consul, appendFrame(nil, PoolWAN, "", p))
		if i%50 == 49 {
			in = appendEcho(in, uint64(i))
			in = appendFrame(in, PoolWAN, "srv1", large)
			consul = appendConsulFrames(consul, appendFrame(nil, PoolWAN, "", large))
			want = append(want, string(large))
		}
		if i%10 == 9 {
			in = appendFrame(in, PoolWAN, "srv9", []byte("for an unknown node"))
		}
	}
	for _, chunk := range []int{1, 5, 1000, 16 << 10, 1 << 20} {
		got, out, reason, err := r.read(t, in, chunk, false)
		if !slices.Equal(got, want) || len(out) != 7*(frameHeadLen+echoLen) || reason != nil ||
			!errors.Is(err, io.EOF) {
			t.Errorf("run() with reads of %d bytes = %d packets, %d bytes of echoes, %v, %v; want %d, %d, none, EOF",
				chunk, len(got), len(out), reason, err, len(want), 7*(frameHeadLen+echoLen))
		}
		if got, _, reason, err = r.read(t, consul, chunk, true); !slices.Equal(got, want) || reason != nil ||
			!errors.Is(err, io.EOF) {
			t.Errorf("run() of Consul's framing with reads of %d bytes = %d packets, %v, %v; want %d, none, EOF",
				chunk, len(got), reason, err, len(want))
		}
	}
	c := r.tun.traffic(PoolWAN, "dc2")
	if unknown, received := c.dropped[dropUnknownNode].Load(), c.received.Load(); unknown != 5*38 ||
		received != uint64(10*len(want)) {
		t.Errorf("counters = %d for an unknown node, %d received; want %d, %d", unknown, received, 5*38, 10*len(want))
	}
}

// Frames that arrive in pieces have the same effect as the frames that
// decodeFrame returns for all bytes at once.
func FuzzPacketConn(f *testing.F) {
	two := appendFrame(appendFrame(nil, PoolWAN, "srv1", []byte("one")), PoolWAN, "", []byte("two"))
	f.Add(two, 3)
	f.Add(appendEcho(two, 1), 100)
	f.Add(appendFrame(two, PoolLAN, "", []byte("x")), 1)
	f.Add(appendFrame(two, PoolWAN, "srv2", []byte("x")), 7)
	f.Add(two[:len(two)-1], 5)
	f.Add(appendFrame(two, poolRelayed, "srv1", relayedPacket("srv1.dc2", []byte("x"))), 9)
	r := newPacketReader(f)
	f.Fuzz(func(t *testing.T, in []byte, chunk int) {
		var want []string
		var echoes []byte
		reasons := []*refusal{nil} // possible results
	model:
		for rest := in; len(rest) > 0; {
			fr, err := decodeFrame(rest)
			switch {
			case errors.Is(err, errFrameShort): // the frame may also have another fault
				reasons = []*refusal{faultTruncated, faultFrame, faultLAN}
				break model
			case err != nil:
				reasons = []*refusal{faultFrame}
				break model
			case fr.pool == poolRelayed:
				reasons = []*refusal{faultFrame}
				break model
			case fr.pool == PoolLAN:
				reasons = []*refusal{faultLAN}
				break model
			case fr.pool == poolEcho:
				echoes = append(echoes, rest[:fr.size]...)
			case len(fr.name) == 0 || string(fr.name) == "srv1":
				want = append(want, string(fr.packet))
			}
			rest = rest[fr.size:]
		}
		got, out, reason, _ := r.read(t, bytes.Clone(in), 1+max(chunk, -chunk-1)%(64<<10), false)
		if !slices.Equal(got, want) || !bytes.Equal(out, echoes) || !slices.Contains(reasons, reason) {
			t.Fatalf("run() = %q, echoes %x, %v; want %q, %x, one of %v", got, out, reason, want, echoes, reasons)
		}
	})
}

// Memory for a packet is allocated as its bytes arrive, not by its announced
// length.
func TestReadPacket_AnnouncedLengthAllocatesNothing(t *testing.T) {
	r := newPacketReader(t)
	for _, announced := range []int{MaxPacket, maxConsulPacket} {
		for arrived, limit := range map[int]int{25: readBufferSize, 5 << 10: 8 << 10} {
			c := &scriptConn{in: make([]byte, arrived), chunk: 1000}
			pc := r.tun.newPacketConn(c, tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"})
			got, reason, err := pc.readPacket(announced)
			if reason != faultTruncated || !errors.Is(err, io.ErrUnexpectedEOF) || cap(got) > limit {
				t.Errorf(
					"readPacket(%d) after %d bytes = %d bytes allocated, %v, %v; want at most %d, %v, unexpected EOF",
					announced, arrived, cap(got), reason, err, limit, faultTruncated)
			}
		}
	}
}
