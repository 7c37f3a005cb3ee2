// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/net/nettest"

	"github.com/wanfed/wanfed/internal/testutil"
)

// yamuxHeader returns the header of a yamux frame.
func yamuxHeader(kind byte, flags uint16, stream, n uint32) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, kind}, flags)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, stream), n)
}

// Values of the header of a yamux frame, in addition to those of yamux.go. A
// window update with the flag SYN opens a stream.
const (
	typeWindowUpdate = 1
	flagSYN          = 1
)

// A peer that sends pings without reading, or that opens too many streams,
// loses its session.
func TestServeStreams_FloodClosesSession(t *testing.T) {
	for _, tt := range []struct {
		name string
		read bool                  // the peer reads responses
		next func(i uint32) []byte // frame i of the flood
	}{
		{"pings", false, func(i uint32) []byte { return yamuxHeader(yamuxTypePing, pingRequest, 0, i) }},
		{"silent streams", true, func(i uint32) []byte { return yamuxHeader(typeWindowUpdate, flagSYN, 2*i+1, 0) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newAuthority(t)
			n := newNode(t, a, "srv1", "dc1").start(listen(t))
			c := rawConn(t, n, a.server("srv1", "dc2"), ProtoStream)
			c.SetDeadline(time.Now().Add(time.Minute))
			var read sync.WaitGroup
			if tt.read {
				read.Go(func() { io.Copy(io.Discard, c) })
			}
			var err error
			for i := uint32(0); err == nil; { // the number of frames depends on scheduling
				var flood []byte
				for range 1000 {
					flood = append(flood, tt.next(i)...)
					i++
				}
				_, err = c.Write(flood)
			}
			if isTimeout(err) {
				t.Error("the session is still open, want closed")
			}
			read.Wait()
			testutil.Eventually(t, 5*time.Second, func() bool { return n.tun.Stats().Closed[faultFlood.id] == 1 },
				"one fault %s", faultFlood)
		})
	}
}

// A stream that is closed without reading does not keep its data for longer than
// streamCloseTimeout, although the peer does not close it.
func TestYamuxConfig_ClosedStream(t *testing.T) {
	l := defaultLimits()
	l.streamCloseTimeout = 50 * time.Millisecond
	near, far := net.Pipe()
	client, err := yamux.Client(near, l.yamuxConfig(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := yamux.Server(far, l.yamuxConfig(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	st, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	open, err := server.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Write(make([]byte, 64<<10)); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 10*time.Second, func() bool { return client.NumStreams() == 0 }, "the closed stream is gone")
}

// pingGuard counts only pings, and reports more than maxPings without a
// response.
func TestPingGuard(t *testing.T) {
	request, response := yamuxHeader(yamuxTypePing, pingRequest, 0, 1), yamuxHeader(yamuxTypePing, pingResponse, 0, 1)
	body := append(yamuxHeader(yamuxTypeData, 0, 1, maxPings*2*yamuxHeaderLen), bytes.Repeat(request, maxPings*2)...)
	for _, step := range []int{1, 5, yamuxHeaderLen, 1000} {
		g, frames := &pingGuard{}, &frameReader{}
		feed := func(b []byte) (err error) {
			r, to := bytes.NewReader(b), make([]byte, step)
			for err == nil {
				_, err = frames.read(r, to, func(h yamuxHead) (bool, error) { return true, g.received(h) })
			}
			if err == io.EOF {
				return nil
			}
			return err
		}
		for range 10 * maxPings { // each ping has a response
			if err := feed(request); err != nil {
				t.Fatalf("received() of a ping after the response to the last ping = %v, want nil", err)
			}
			g.sent(response)
		}
		g.sent(request)
		if err := errors.Join(feed(body), feed(yamuxHeader(typeWindowUpdate, flagSYN, 1, 1<<31)),
			feed(bytes.Repeat(response, 10*maxPings))); err != nil {
			t.Errorf("received() of frames other than pings = %v, want nil", err)
		}
		if err := feed(bytes.Repeat(request, maxPings)); err != nil {
			t.Errorf("received() of %d pings = %v, want nil", maxPings, err)
		}
		if err := feed(request); sessionFault(err) != faultFlood {
			t.Errorf("received() of %d pings = %v, want a flood", maxPings+1, err)
		}
	}
}

// What yamux receives does not depend on the sizes of its reads. Bodies that check
// refuses are missing, and each read returns bytes of one header or one body.
func FuzzFrameReader(f *testing.F) {
	request := yamuxHeader(yamuxTypePing, pingRequest, 0, 1)
	body := bytes.Repeat([]byte{7}, 30)
	f.Add(append(append(yamuxHeader(yamuxTypeData, flagSYN, 1, 30), body...), request...), 13)
	f.Add(append(append(yamuxHeader(yamuxTypeData, 0, 2, 30), body...), request...), 5) // discarded
	f.Add(yamuxHeader(yamuxTypeData, flagSYN, 1, 1<<32-1), 1)
	f.Add(yamuxHeader(yamuxTypeData, 0, 4, 1<<32-1), 40)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		keep := func(h yamuxHead) bool { return h.stream()%2 == 1 }
		var want []byte
		for rest := b; len(rest) >= yamuxHeaderLen; {
			h := yamuxHead(rest)
			n := int(min(uint64(h.body()), uint64(len(rest)-yamuxHeaderLen)))
			body := rest[yamuxHeaderLen:][:n]
			if h.body() > 0 && !keep(h) {
				binary.BigEndian.PutUint32(h[8:], 0)
				body = nil
			}
			want = append(append(want, h[:]...), body...)
			rest = rest[yamuxHeaderLen+n:]
		}
		var f frameReader
		r, to := bytes.NewReader(b), make([]byte, max(1, min(step, 1<<16)))
		var got []byte
		for {
			n, err := f.read(r, to, func(h yamuxHead) (bool, error) { return keep(h), nil })
			if got = append(got, to[:n]...); err != nil {
				break
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("bytes read in pieces of %d = %x, want %x", step, got, want)
		}
	})
}

// countingConn joins headers like yamuxConn, and counts writes.
type countingConn struct {
	net.Conn
	frames headerJoiner
	writes atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	return c.frames.write(b, func(b []byte) (int, error) {
		c.writes.Add(1)
		return c.Conn.Write(b)
	})
}

// countingPair returns both ends of a session, and the connection of client.
func countingPair(t testing.TB) (client, server *yamux.Session, c *countingConn) {
	t.Helper()
	a, b := net.Pipe()
	cfg := defaultLimits().yamuxConfig(orDiscard(nil))
	cfg.EnableKeepAlive = false
	c = &countingConn{Conn: a}
	client, err := yamux.Client(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	server, err = yamux.Server(&countingConn{Conn: b}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server, c
}

func TestHeaderJoiner_NetConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		client, server, _ := countingPair(t)
		c, err := client.OpenStream()
		if err != nil {
			return nil, nil, nil, err
		}
		s, err := server.AcceptStream()
		return newStreamConn(c, "a"), newStreamConn(s, "b"), func() { client.Close(); server.Close() }, err
	})
}

// A frame is one write. Only a frame that does not fit into a TLS record has
// its header in a separate write.
func TestHeaderJoiner_OneWritePerFrame(t *testing.T) {
	client, server, conn := countingPair(t)
	c, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ size, writes int }{
		{1, 1}, {yamuxHeaderLen, 1}, {maxJoinBuffer, 1}, {maxRecord - yamuxHeaderLen, 1},
		{maxRecord, 2}, {streamChunk, 2}, {100, 1},
	} {
		// Zero bytes look like a header without a body.
		sent := make([]byte, tt.size)
		before := conn.writes.Load()
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		if n := conn.writes.Load() - before; n != int64(tt.writes) {
			t.Errorf("Write() of %d bytes: %d writes, want %d", tt.size, n, tt.writes)
		}
		got := make([]byte, tt.size)
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("ReadFull() after Write() of %d bytes = %v, equal %v; want nil and equal bytes",
				tt.size, err, bytes.Equal(got, sent))
		}
		if n := cap(conn.frames.header); n > maxJoinBuffer {
			t.Errorf("capacity of the buffer after Write() of %d bytes = %d, want at most %d", tt.size, n,
				maxJoinBuffer)
		}
	}
}
