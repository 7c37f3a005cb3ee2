// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// vouched is a connection without TLS that says it had a handshake.
type vouched struct{ net.Conn }

func (vouched) ConnectionState() tls.ConnectionState {
	return tls.ConnectionState{HandshakeComplete: true}
}

// shyListener's connections send nothing before they have read 2 kB: more than a client sends that waits for SETTINGS.
type shyListener struct{ net.Listener }

const shyFor = 2 << 10

type shyConn struct {
	net.Conn
	mu   sync.Mutex
	read int
	kept []byte // what was written too early
}

func (l shyListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &shyConn{Conn: c}, nil
}

func (c *shyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read += n; c.read >= shyFor && len(c.kept) > 0 {
		_, _ = c.Conn.Write(c.kept)
		c.kept = nil
	}
	return n, err
}

func (c *shyConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read < shyFor {
		c.kept = append(c.kept, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A call goes out before the peer has said anything; the peer's settings, which then come, are taken, and later calls work.
func TestEager(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.MaxConcurrentStreams(2))
	pb.RegisterServerServiceServer(srv, &serverService{query: func(_ context.Context, req *pb.QueryRequest) (*pb.QueryResponse, error) {
		return &pb.QueryResponse{Body: []byte(req.GetPath())}, nil
	}})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(shyListener{ln}) }()
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		return newEager(vouched{c}), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cc.Close()
		srv.Stop()
		<-served
	})
	ctx, cancel := context.WithTimeout(t.Context(), starting)
	defer cancel()
	path := "/" + strings.Repeat("x", 4<<10)
	ask := func() {
		got, err := pb.NewServerServiceClient(cc).Query(ctx, &pb.QueryRequest{Path: path})
		if err != nil || string(got.GetBody()) != path {
			t.Errorf("%.40v, %v", got, err)
		}
	}
	ask()
	var wg sync.WaitGroup
	for range 20 { // two at a time, as the peer's settings say
		wg.Go(ask)
	}
	wg.Wait()
}
