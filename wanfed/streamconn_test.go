// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"io"
	"net"
	"testing"

	"github.com/hashicorp/yamux"
	"golang.org/x/net/nettest"
)

func TestStreamConn_NetConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := net.Pipe()
		cfg := defaultLimits().yamuxConfig(orDiscard(nil))
		client, err := yamux.Client(a, cfg)
		if err != nil {
			return nil, nil, nil, err
		}
		server, err := yamux.Server(b, cfg)
		if err != nil {
			return nil, nil, nil, err
		}
		c, err := client.OpenStream()
		if err != nil {
			return nil, nil, nil, err
		}
		s, err := server.AcceptStream()
		if err != nil {
			return nil, nil, nil, err
		}
		return newStreamConn(c, "a"), newStreamConn(s, "b"), func() { client.Close(); server.Close() }, nil
	})
}

// Read returns io.EOF after the end of the stream, and not after the end of the
// session.
func TestStreamConn_EOF(t *testing.T) {
	pair := func() (c, s *streamConn, client *yamux.Session) {
		a, b := net.Pipe()
		cfg := defaultLimits().yamuxConfig(orDiscard(nil))
		client, _ = yamux.Client(a, cfg)
		server, _ := yamux.Server(b, cfg)
		t.Cleanup(func() { client.Close(); server.Close() })
		cst, err := client.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		sst, err := server.AcceptStream()
		if err != nil {
			t.Fatal(err)
		}
		return newStreamConn(cst, "a"), newStreamConn(sst, "b"), client
	}
	c, s, _ := pair()
	c.CloseWrite()
	if _, err := s.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read() after CloseWrite of the peer = %v, want EOF", err)
	}
	_, s, client := pair()
	client.Close()
	if _, err := s.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("Read() after the end of the session = %v, want an error other than EOF", err)
	}
}
