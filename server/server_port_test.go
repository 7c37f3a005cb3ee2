// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// target is a running server of dc1, with identities of faulty peers.
type target struct {
	t        testing.TB
	part     *part
	addrs    Addrs
	dc1, dc2 *tlsutil.Identity // servers
}

func newTarget(t testing.TB) *target {
	t.Helper()
	return newTargetOf(t, tlstest.NewCA(t))
}

func newTargetOf(t testing.TB, ca *tlstest.CA) *target {
	t.Helper()
	f := ca.Files(t, tlsutil.RoleServer, "srv1", "dc1")
	g := &target{
		t:   t,
		dc1: ca.Identity(t, tlsutil.RoleServer, "srv2", "dc1"), dc2: ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2"),
	}
	g.part, g.addrs = startServer(t, Config{
		DC: "dc1", Node: "srv1", DataDir: filepath.Join(t.TempDir(), "data"), CAFile: f.CA, CertFile: f.Cert,
		KeyFile: f.Key,
	})
	testutil.Await(t, startTimeout, "a server that serves HTTP and gRPC", g.alive)
	return g
}

// protocols has all protocols of the TLS port.
var protocols = []string{
	wanfed.ProtoGossip, wanfed.ProtoRelay, wanfed.ProtoDuplex, wanfed.ProtoStream, wanfed.ProtoConsulPacket, wanfed.ProtoConsulStream,
	wanfed.ProtoRaft, wanfed.ProtoGRPC,
}

// dial connects with a protocol, as a peer that may use the protocol.
func (g *target) dial(ctx context.Context, alpn string) (*tls.Conn, error) {
	id := g.dc2
	if alpn == wanfed.ProtoRaft || alpn == wanfed.ProtoRelay {
		id = g.dc1
	}
	c, err := (&tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", alpn)}).DialContext(ctx, "tcp", g.addrs.Server)
	if err != nil {
		return nil, err
	}
	return c.(*tls.Conn), nil
}

// Ways to end a connection after the last byte.
const (
	endHalf  = iota // close the write side, and read until the server closes
	endClose        // close
	endReset        // reset, without a TLS close_notify
	ends            // number of ways
)

// sendGarbage sends data and ends the connection. It ignores the response.
func (g *target) sendGarbage(ctx context.Context, alpn string, data []byte, end int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := g.dial(ctx, alpn)
	if err != nil {
		return err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	if _, err := c.Write(data); err != nil {
		return nil // the server has closed the connection
	}
	switch end {
	case endHalf:
		if c.CloseWrite() == nil {
			if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("Read() of %s = %v after CloseWrite(), want the end of the connection", alpn, err)
			}
		}
	case endReset:
		c.NetConn().(*net.TCPConn).SetLinger(0)
		c.NetConn().Close()
	}
	return nil
}

// alive returns an error unless the server serves HTTP and gRPC, and leads its
// datacenter.
func (g *target) alive(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := api.NewClient(api.ClientConfig{Addr: g.addrs.HTTP})
	if err != nil {
		return err
	}
	defer c.Close()
	if leader, err := c.Leader(ctx, api.QueryOptions{}); err != nil || leader != g.addrs.Server {
		return fmt.Errorf("Leader() = %q, %v, want %q", leader, err, g.addrs.Server)
	}
	cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) { return g.dial(ctx, wanfed.ProtoGRPC) })
	if err != nil {
		return err
	}
	defer cc.Close()
	_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// metrics returns the sum of all series of a metric.
func (g *target) metrics(t testing.TB, name string) (sum float64) {
	t.Helper()
	resp, err := http.Get(g.addrs.HTTP + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		var v float64
		if s := lines.Text(); strings.HasPrefix(s, name+"{") {
			if _, err := fmt.Sscan(s[strings.LastIndexByte(s, ' ')+1:], &v); err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// beginnings returns valid first bytes of a connection. Garbage that follows
// them passes the first checks of the server.
func beginnings(alpn string) [][]byte {
	frame := func(pool byte, target string, n int) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(2+len(target)+n))
		return append(append(b, pool, byte(len(target))), target...)
	}
	yamux := func(typ, flags byte, stream, length uint32) []byte {
		b := []byte{0, typ, 0, flags}
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, stream), length)
	}
	open := yamux(1, 1, 1, 0) // a window update with SYN
	header := append([]byte{0x51, 1, 4, 8}, "srv1srv1.dc2"...)
	switch alpn {
	case wanfed.ProtoGossip, wanfed.ProtoRelay, wanfed.ProtoDuplex:
		return [][]byte{
			nil, frame(1, "srv1", 40), frame(1, "", 65536), frame(1, "srv9", 5), frame(2, "srv1", 9), frame(0, "", 8), frame(4, "srv1", 11),
			{255, 255, 255, 255, 1, 0},
		}
	case wanfed.ProtoStream:
		data := append(append(open[:12:12], yamux(0, 0, 1, uint32(len(header)))...), header...)
		return [][]byte{
			nil, open, yamux(0, 0, 7, 100), yamux(0, 1, 1, 1<<31), yamux(2, 1, 0, 9), yamux(3, 0, 0, 0), data,
			append(data[:len(data):len(data)], yamux(0, 0, 1, 512)...),
		}
	case wanfed.ProtoConsulPacket:
		return [][]byte{nil, {0, 0, 0, 40}, {0, 0, 255, 255}, {0, 0, 0, 0}, {127, 0, 0, 0}}
	case wanfed.ProtoConsulStream: // ping, push/pull, user, compressed, encrypted, checksum, error, label
		return [][]byte{nil, {0}, {6}, {8}, {9}, {10}, {12}, {13}, {244, 3}}
	case wanfed.ProtoRaft: // append entries, vote, snapshot, timeout now, pre-vote
		return [][]byte{nil, {0}, {1}, {2}, {3}, {4}}
	}
	preface := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	settings := append(preface[:len(preface):len(preface)], 0, 0, 0, 4, 0, 0, 0, 0, 0)
	return [][]byte{
		nil, []byte("GET / HTTP/1.1\r\n\r\n"), preface, settings,
		append(settings[:len(settings):len(settings)], 0, 1, 0, 1, 4, 0, 0, 0, 1),
	}
}

// TestServerPort_Garbage proves that a peer with a valid certificate that
// violates the protocol does not affect other peers. The server closes and
// counts its connections. No goroutine remains after the server has stopped.
func TestServerPort_Garbage(t *testing.T) {
	testutil.Cluster(t)
	leaks := goleak.IgnoreCurrent()
	g := newTarget(t)
	defer func() {
		http.DefaultClient.CloseIdleConnections()
		wantNoGoroutines(t, leaks)
	}()
	defer g.part.end(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	const workers = 4
	var wg sync.WaitGroup
	for worker := range workers {
		rnd := rand.New(rand.NewPCG(1, uint64(worker)))
		wg.Go(func() {
			for _, alpn := range protocols {
				for _, begin := range beginnings(alpn) {
					data := append([]byte(nil), begin...)
					for range rnd.IntN(3000) {
						data = append(data, byte(rnd.Uint32()))
					}
					if err := g.sendGarbage(ctx, alpn, data, rnd.IntN(ends)); err != nil {
						t.Errorf("sendGarbage(%s, % x…) = %v, want nil", alpn, begin, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := g.alive(ctx); err != nil {
		t.Fatalf("alive() = %v after the garbage, want nil", err)
	}
	for name, least := range map[string]float64{
		"wanfed_gossip_closed_total": workers * 5, "wanfed_port_connections_total": float64(workers * len(protocols)),
	} { // the server may not have read all data yet
		testutil.Eventually(t, startTimeout, func() bool { return g.metrics(t, name) >= least }, "%s of at least %v",
			name, least)
	}

	// When the server stops, these connections are open with incomplete
	// messages.
	for _, alpn := range protocols {
		for _, begin := range beginnings(alpn) {
			c, err := g.dial(ctx, alpn)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write(begin); err != nil {
				t.Error(err)
			}
		}
	}
}

// FuzzServerPort sends arbitrary data to a server over TCP, as a server of
// another datacenter.
func FuzzServerPort(f *testing.F) {
	g := newTarget(f)
	f.Cleanup(func() { g.part.end(f) })
	for p, alpn := range protocols {
		for i, begin := range beginnings(alpn) {
			f.Add(uint8(p), append(begin[:len(begin):len(begin)], "arbitrary bytes"...), uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, protocol uint8, data []byte, end uint8) {
		if err := g.sendGarbage(t.Context(), protocols[int(protocol)%len(protocols)], data, int(end)%ends); err != nil {
			t.Fatalf("sendGarbage() = %v, want nil", err)
		}
		if err := g.alive(t.Context()); err != nil {
			t.Fatalf("alive() = %v after the data, want nil", err)
		}
	})
}
