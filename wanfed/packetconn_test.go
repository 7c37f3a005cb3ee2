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

// scriptConn is a connection that returns in, at most chunk bytes per Read,
// then EOF, and records what is written.
type scriptConn struct {
	net.Conn
	in    []byte
	chunk int
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

// packetReader is srv1 of dc1, which reads scripts.
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
// the echoes, and why the connection ended.
func (r *packetReader) read(t testing.TB, in []byte, chunk int, consul bool) (got []string, out []byte, why refusal,
	err error) {
	t.Helper()
	c := &scriptConn{in: in, chunk: chunk}
	pc := r.tun.newPacketConn(c, tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"})
	frame := pc.readFrame
	if consul {
		frame = pc.readConsulFrame
	}
	why, err = pc.run(frame)
	for len(r.tr.packets) > 0 {
		p := <-r.tr.packets
		if cap(p.Buf) != len(p.Buf) {
			t.Errorf("a packet of %d bytes has capacity %d, want equal", len(p.Buf), cap(p.Buf))
		}
		got = append(got, string(p.Buf))
		clear(p.Buf) // the receiver owns it
	}
	return got, c.out, why, err
}

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
		got, out, why, err := r.read(t, in, chunk, false)
		if !slices.Equal(got, want) || len(out) != 7*(frameHeadLen+echoLen) || why != "" || !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes at a time: %d packets of %d, %d bytes of echoes, %q, %v", chunk, len(got), len(want), len(out),
				why, err)
		}
		if got, _, why, err = r.read(t, consul, chunk, true); !slices.Equal(got, want) || why != "" ||
			!errors.Is(err, io.EOF) {
			t.Errorf("Consul's framing, %d bytes at a time: %d packets of %d, %q, %v", chunk, len(got), len(want), why, err)
		}
	}
	if got := r.tun.traffic(PoolWAN, "dc2"); got.dropped[dropUnknownNode].Load() != 5*38 ||
		got.received.Load() != uint64(10*len(want)) {
		t.Errorf("%d for an unknown node, %d received", got.dropped[dropUnknownNode].Load(), got.received.Load())
	}
}

// Frames that arrive in pieces must have the same effect as decodeFrame of the
// whole.
func FuzzPacketConn(f *testing.F) {
	two := appendFrame(appendFrame(nil, PoolWAN, "srv1", []byte("one")), PoolWAN, "", []byte("two"))
	f.Add(two, 3)
	f.Add(appendEcho(two, 1), 100)
	f.Add(appendFrame(two, PoolLAN, "", []byte("x")), 1)
	f.Add(appendFrame(two, PoolWAN, "srv2", []byte("x")), 7)
	f.Add(two[:len(two)-1], 5)
	r := newPacketReader(f)
	f.Fuzz(func(t *testing.T, in []byte, chunk int) {
		var want []string
		var echoes []byte
		whys := []refusal{""}
	model:
		for rest := in; len(rest) > 0; {
			fr, err := decodeFrame(rest)
			switch {
			case errors.Is(err, errFrameShort): // it may have another fault besides
				whys = []refusal{faultTruncated, faultFrame, faultLAN}
				break model
			case err != nil:
				whys = []refusal{faultFrame}
				break model
			case fr.pool == PoolLAN:
				whys = []refusal{faultLAN}
				break model
			case fr.pool == poolEcho:
				echoes = append(echoes, rest[:fr.size]...)
			case len(fr.name) == 0 || string(fr.name) == "srv1":
				want = append(want, string(fr.packet))
			}
			rest = rest[fr.size:]
		}
		got, out, why, _ := r.read(t, bytes.Clone(in), 1+max(chunk, -chunk-1)%(64<<10), false)
		if !slices.Equal(got, want) || !bytes.Equal(out, echoes) || !slices.Contains(whys, why) {
			t.Fatalf("%q, echoes %x, %q; want %q, %x, one of %q", got, out, why, want, echoes, whys)
		}
	})
}

// Memory for a packet is allocated as its bytes arrive, not by its announced
// length.
func TestReadPacket_AnnouncedLengthAllocatesNothing(t *testing.T) {
	r := newPacketReader(t)
	for _, announced := range []int{MaxPacket, maxConsulPacket} {
		for arrived, limit := range map[int]int{25: readBufferSize, 50 << 10: 128 << 10} {
			c := &scriptConn{in: make([]byte, arrived), chunk: 1000}
			pc := r.tun.newPacketConn(c, tlsutil.Peer{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"})
			got, why, err := pc.readPacket(announced)
			if why != faultTruncated || !errors.Is(err, io.ErrUnexpectedEOF) || cap(got) > limit {
				t.Errorf("readPacket(%d) after %d bytes = %d bytes allocated, %q, %v; want at most %d, %q, unexpected EOF",
					announced, arrived, cap(got), why, err, limit, faultTruncated)
			}
		}
	}
}
