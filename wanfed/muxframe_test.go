// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/yamux"
	"golang.org/x/net/nettest"
)

// framedConn writes as a muxConn does, and counts.
type framedConn struct {
	net.Conn
	frames headerJoiner
	writes atomic.Int64
}

func (c *framedConn) Write(b []byte) (int, error) {
	return c.frames.write(b, func(b []byte) (int, error) {
		c.writes.Add(1)
		return c.Conn.Write(b)
	})
}

func framedPair(t testing.TB) (client, server *yamux.Session, c *framedConn) {
	t.Helper()
	a, b := net.Pipe()
	cfg := defaultLimits().yamuxConfig(orDiscard(nil))
	cfg.EnableKeepAlive = false
	c = &framedConn{Conn: a}
	client, err := yamux.Client(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	server, err = yamux.Server(&framedConn{Conn: b}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server, c
}

func TestStreamsOfFramesAreNetConns(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		client, server, _ := framedPair(t)
		c, err := client.OpenStream()
		if err != nil {
			return nil, nil, nil, err
		}
		s, err := server.AcceptStream()
		return newStreamConn(c, "a"), newStreamConn(s, "b"), func() { client.Close(); server.Close() }, err
	})
}

// A frame is one write; one that fills records has its header by itself.
func TestFramesAreOneWrite(t *testing.T) {
	client, server, conn := framedPair(t)
	c, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ size, writes int }{
		{1, 1}, {yamuxHeaderLen, 1}, {maxJoinBuffer, 1}, {maxRecord - yamuxHeaderLen, 1}, {maxRecord, 2}, {streamChunk, 2}, {100, 1},
	} {
		// Zeros are a header without a body, and 12 of them a header as long as one.
		sent := make([]byte, tc.size)
		before := conn.writes.Load()
		if _, err := c.Write(sent); err != nil {
			t.Fatal(err)
		}
		if n := conn.writes.Load() - before; n != int64(tc.writes) {
			t.Errorf("%d bytes: %d writes, want %d", tc.size, n, tc.writes)
		}
		got := make([]byte, tc.size)
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: %v, or others came", tc.size, err)
		}
		if cap(conn.frames.header) > maxJoinBuffer {
			t.Errorf("after %d bytes %d are kept", tc.size, cap(conn.frames.header))
		}
	}
}
