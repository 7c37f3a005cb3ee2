// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/proc"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// kvBench is dc1 with one server and dc2 with three, each with a gateway, as processes on the loopback, and key x in dc2.
type kvBench struct {
	far      string // host:port of HTTP of dc1's server
	follower string // of a server of dc2 that does not lead
	leader   string // of the one that does
}

func newKVBench(b *testing.B) kvBench {
	b.Helper()
	l := newLoopback(b)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	server := func(dc, node string, change func(*proc.ServerConfig)) *proc.Server {
		cfg := proc.ServerConfig{
			Program: []string{l.bin}, Dir: filepath.Join(l.dir, dc+"-"+node), DC: dc, Node: node,
			TLS: l.ca.Files(b, tlsutil.RoleServer, node, dc), PrimaryDC: "dc1",
		}
		change(&cfg)
		s, err := proc.StartServer(ctx, cfg)
		if err != nil {
			b.Fatal(err)
		}
		l.keep(s.Process)
		return s
	}
	gateway := func(dc string, servers ...string) string {
		g, err := proc.StartGateway(ctx, proc.GatewayConfig{
			Program: []string{l.bin}, Dir: filepath.Join(l.dir, dc+"-gw1"), DC: dc, Node: "gw1",
			TLS: l.ca.Files(b, tlsutil.RoleGateway, "gw1", dc), Servers: servers,
		})
		if err != nil {
			b.Fatal(err)
		}
		l.keep(g.Process)
		return g.WAN
	}
	far := server("dc1", "srv1", func(*proc.ServerConfig) {})
	wan := gateway("dc1", far.Addr)
	var near []*proc.Server
	first := unusedPort(b)
	for i := range 3 {
		near = append(near, server("dc2", fmt.Sprintf("srv%d", i+1), func(c *proc.ServerConfig) {
			c.PrimaryGateways, c.BootstrapExpect, c.RetryJoin = []string{wan}, 3, []string{fmt.Sprintf("127.0.0.1:%d", first)}
			if i == 0 {
				c.Port = first
			}
		}))
	}
	gateway("dc2", near[0].Addr, near[1].Addr, near[2].Addr)

	out := kvBench{far: strings.TrimPrefix(far.HTTP, "http://")}
	c := operatorOf(b, l, "dc2")
	defer c.CloseIdleConnections()
	lab.Eventually(b, patience, "key x in dc2", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, strings.Replace(near[0].HTTP, "http:", "https:", 1)+"/v1/kv/x", strings.NewReader("hello world"))
		if err != nil {
			return err
		}
		if _, err = answerOf(c, req); err != nil {
			return err
		}
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, far.HTTP+"/v1/kv/x?dc=dc2", nil)
		if err != nil {
			return err
		}
		_, err = answerOf(http.DefaultClient, req)
		return err
	})
	lab.Eventually(b, patience, "a leader and a follower", func(ctx context.Context) error {
		out.leader, out.follower = "", ""
		for _, s := range near {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.HTTP+"/v1/status/leader", nil)
			if err != nil {
				return err
			}
			leader, err := answerOf(http.DefaultClient, req)
			switch {
			case err != nil:
				return err
			case string(leader) == fmt.Sprintf("%q", s.Addr):
				out.leader = strings.TrimPrefix(s.HTTP, "http://")
			default:
				out.follower = strings.TrimPrefix(s.HTTP, "http://")
			}
		}
		if out.leader == "" || out.follower == "" {
			return fmt.Errorf("leader %q, follower %q", out.leader, out.follower)
		}
		return nil
	})
	return out
}

// operatorOf is an HTTP client with an operator's certificate.
func operatorOf(b *testing.B, l *loopback, dc string) *http.Client {
	b.Helper()
	files, roots := l.ca.Files(b, tlsutil.RoleCLI, "joe", dc), x509.NewCertPool()
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		b.Fatal(err)
	}
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		b.Fatal(err)
	}
	roots.AppendCertsFromPEM(pem)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}}}
}

// unusedPort is one that nobody listens on: a server must know that of the first one before it runs.
func unusedPort(b *testing.B) int {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func answerOf(c *http.Client, req *http.Request) ([]byte, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", req.Method, req.URL, resp.Status, body)
	}
	return body, err
}

// BenchmarkKVAcrossDatacenters reads a key of dc2 through dc1 and two gateways, and beside it at a follower of dc2, and at its
// leader: as fresh as Consul's default, and as any server has it.
func BenchmarkKVAcrossDatacenters(b *testing.B) {
	k := newKVBench(b)
	for _, clients := range []int{1, 32} {
		for _, way := range []struct{ name, addr, query string }{
			{"default/across", k.far, "dc=dc2"}, {"default/follower", k.follower, ""}, {"default/leader", k.leader, ""},
			{"stale/across", k.far, "stale&dc=dc2"}, {"stale/follower", k.follower, "stale"},
		} {
			b.Run(fmt.Sprintf("%s/clients=%d", way.name, clients), func(b *testing.B) {
				askMany(b, way.addr, "/v1/kv/x?"+way.query, clients)
			})
		}
	}
}

// askMany sends b.N requests over that many connections, each of which waits for an answer before it asks again.
func askMany(b *testing.B, addr, path string, clients int) {
	request := []byte("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range clients {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			for left.Add(-1) >= 0 {
				start := time.Now()
				if _, err = conn.Write(request); err == nil {
					err = readAnswer(r)
				}
				if err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "req/s")
}

// readAnswer reads one answer with the value "hello world".
func readAnswer(r *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		switch {
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")):
			return fmt.Errorf("answer %q", line)
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			if _, err := fmt.Sscanf(string(line[16:]), "%d", &length); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if !bytes.Contains(body, []byte(`"Value":"aGVsbG8gd29ybGQ="`)) {
		return fmt.Errorf("body %s", body)
	}
	return nil
}
