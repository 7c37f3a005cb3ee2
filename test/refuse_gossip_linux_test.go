// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// gossipFrame encodes a frame of wanfed/gossip/1, which wanfed/SPEC.md defines.
func gossipFrame(pool byte, target, packet string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(2+len(target)+len(packet)))
	b = append(b, pool, byte(len(target)))
	return append(append(b, target...), packet...)
}

// streamHeader encodes the header of a stream of wanfed/stream/1.
func streamHeader(version, pool byte, target, source string) []byte {
	b := []byte{version, pool, byte(len(target)), byte(len(source))}
	return append(append(b, target...), source...)
}

// refuseGossip sends invalid frames and streams on the gossip protocols, with
// the certificate of a server of dc2.
func refuseGossip(t *testing.T, l *loopback, s *site) {
	closed := func(reason string) string { return fmt.Sprintf(`wanfed_gossip_closed_total{reason=%q}`, reason) }
	for _, test := range []struct {
		name, alpn string
		send       []byte
		reason     string
		want       string
	}{
		{"LAN frame from another datacenter", wanfed.ProtoGossip, gossipFrame(2, "srv1", "x"),
			"lan_from_other_datacenter",
			`level=WARN msg="connection closed: LAN gossip from another datacenter"… peer=server/dc2/srv1 ` +
				`alpn=wanfed/gossip/1 remote=`},
		{"unknown pool", wanfed.ProtoGossip, gossipFrame(7, "srv1", "x"), "bad_frame",
			`msg="connection closed: peer sent an invalid frame"… err="unknown pool: 7"`},
		{"empty packet", wanfed.ProtoGossip, gossipFrame(1, "srv1", ""), "bad_frame", `err="length out of bounds`},
		{"length beyond the limit", wanfed.ProtoGossip, []byte{0xff, 0xff, 0xff, 0xff, 1, 0}, "bad_frame",
			`err="length out of bounds`},
		{"name that is too long", wanfed.ProtoGossip, gossipFrame(1, strings.Repeat("n", 64), "x"), "bad_frame",
			`err="bad target name`},
		{"name that is not a DNS label", wanfed.ProtoGossip, gossipFrame(1, "SRV1", "x"), "bad_frame",
			`err="bad target name`},
		{"echo of the wrong size", wanfed.ProtoGossip, gossipFrame(0, "", "1234567"), "bad_frame",
			`err="length out of bounds: an echo frame`},
		{"HTTP", wanfed.ProtoGossip, []byte("GET / HTTP/1.1\r\n\r\n"), "bad_frame", `peer=server/dc2/srv1`},
		{"truncated frame", wanfed.ProtoGossip, gossipFrame(1, "srv1", "xyz")[:10], "truncated",
			`msg="connection closed by the peer in the middle of a frame or header"`},
		{"Consul packet of length 0", wanfed.ProtoConsulPacket, make([]byte, 4), "bad_frame",
			`alpn=consul/wan-gossip/packet … err="length out of bounds: a packet of 0 bytes`},
		{"Consul packet beyond the limit", wanfed.ProtoConsulPacket, []byte{0, 0x40, 0, 1}, "bad_frame",
			`err="length out of bounds: a packet of 4194305 bytes`},
		{"truncated Consul packet", wanfed.ProtoConsulPacket, []byte{0, 0, 0, 9, 1}, "truncated",
			`alpn=consul/wan-gossip/packet`},
		{"HTTP instead of yamux", wanfed.ProtoStream, []byte("GET / HTTP/1.1\r\n\r\n"), "bad_frame",
			`alpn=wanfed/stream/1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := l.client(t, tlsutil.RoleServer, "srv1", "dc2", "server.dc1.wanfed", test.alpn)
			counted(t, logOf(s.server.Process), s.server.HTTP, closed(test.reason), test.reason, test.want, func() {
				ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
				defer cancel()
				c, err := dial(ctx, s.server.Addr, cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if _, err := c.Write(test.send); err != nil {
					t.Fatal(err)
				}
				if test.reason == "truncated" {
					if err := c.CloseWrite(); err != nil {
						t.Fatal(err)
					}
				}
				drained(t, c, nil)
			})
		})
	}
	for _, test := range []struct {
		name   string
		header []byte
		status byte
		reason string
		want   string
	}{
		{"stream of another version", streamHeader(0x52, 1, "srv1", "srv1.dc2"), 1, "bad_stream_header",
			`msg="stream refused: invalid header"… peer=server/dc2/srv1`},
		{"stream of an unknown pool", streamHeader(0x51, 9, "srv1", "srv1.dc2"), 1, "bad_stream_header",
			`err="unknown pool: 9"`},
		{"stream with the name of another server", streamHeader(0x51, 1, "srv1", "srv9.dc3"), 3, "bad_stream_source",
			`msg="stream refused: the source in its header is not the peer"`},
		{"stream with the name of a local server", streamHeader(0x51, 1, "srv1", "srv1.dc1"), 3, "bad_stream_source",
			`peer=server/dc2/srv1`},
		{"LAN stream from another datacenter", streamHeader(0x51, 2, "srv1", "srv1.dc2"), 3,
			"lan_from_other_datacenter", `peer=server/dc2/srv1 alpn=wanfed/stream/1`},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := l.client(t, tlsutil.RoleServer, "srv1", "dc2", "server.dc1.wanfed", wanfed.ProtoStream)
			counted(t, logOf(s.server.Process), s.server.HTTP, closed(test.reason), test.reason, test.want, func() {
				if got := openStream(t, s.server.Addr, cfg, test.header); !bytes.Equal(got, []byte{test.status}) {
					t.Errorf("response = % x, want % x", got, test.status)
				}
			})
		})
	}
}

// openStream opens a stream, sends header, and returns the bytes that it reads
// until the stream ends.
func openStream(t testing.TB, addr string, cfg *tls.Config, header []byte) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	c, err := dial(ctx, addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	session := yamuxClient(t, c)
	defer session.Close()
	st, err := session.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	st.SetDeadline(time.Now().Add(waitLimit))
	if _, err := st.Write(header); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(st)
	if err != nil {
		t.Error(err)
	}
	return got
}

// yamuxClient returns the client end of a yamux session over c.
func yamuxClient(t testing.TB, c net.Conn) *yamux.Session {
	t.Helper()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	session, err := yamux.Client(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return session
}
