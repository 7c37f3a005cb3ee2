// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// kvKeys is the number of keys.
const kvKeys = 32

func kvKey(i int) string {
	if i == 0 {
		return "x"
	}
	return fmt.Sprintf("x%d", i)
}

// kvBench is a federation of processes on loopback: dc1 with one server, dc2
// with three, a gateway in each, and keys in dc2.
type kvBench struct {
	far       string // HTTP address (host:port) of dc1's server
	follower  string // HTTP address of a follower of dc2
	leader    string // HTTP address of the leader of dc2
	responder string // node of dc2 that answers dc1
	lab       *loopback
	servers   map[string]string // of dc2: host:port by node
	all       []*subprocess.Process
}

func newKVBench(b testing.TB, leads bool) (out kvBench) {
	b.Helper()
	l := newLoopback(b)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	server := func(dc, node string, change func(*subprocess.ServerConfig)) *subprocess.Server {
		cfg := subprocess.ServerConfig{
			Program: []string{l.bin}, Dir: filepath.Join(l.dir, dc+"-"+node), DC: dc, Node: node,
			Args: []string{"--reads-from", "dc1"}, // clients without a certificate read keys of dc2 through dc1
			TLS:  l.ca.Files(b, tlsutil.RoleServer, node, dc), PrimaryDC: "dc1",
		}
		change(&cfg)
		s, err := subprocess.StartServer(ctx, cfg)
		if err != nil {
			b.Fatal(err)
		}
		l.keep(s.Process)
		out.all = append(out.all, s.Process)
		return s
	}
	gateway := func(dc string, servers ...string) string {
		g, err := subprocess.StartGateway(ctx, subprocess.GatewayConfig{
			Program: []string{l.bin}, Dir: filepath.Join(l.dir, dc+"-gw1"), DC: dc, Node: "gw1",
			TLS: l.ca.Files(b, tlsutil.RoleGateway, "gw1", dc), Servers: servers,
		})
		if err != nil {
			b.Fatal(err)
		}
		l.keep(g.Process)
		out.all = append(out.all, g.Process)
		return g.WAN
	}
	far := server("dc1", "srv1", func(*subprocess.ServerConfig) {})
	wan := gateway("dc1", far.Addr)
	var near []*subprocess.Server
	first := unusedPort(b)
	for i := range 3 {
		near = append(near, server("dc2", fmt.Sprintf("srv%d", i+1), func(c *subprocess.ServerConfig) {
			c.PrimaryGateways, c.BootstrapExpect, c.RetryJoin = []string{wan}, 3,
				[]string{fmt.Sprintf("127.0.0.1:%d", first)}
			if i == 0 {
				c.Port = first
			}
		}))
	}
	gateway("dc2", near[0].Addr, near[1].Addr, near[2].Addr)

	out.lab, out.servers = l, map[string]string{}
	for i, s := range near {
		out.servers[fmt.Sprintf("srv%d", i+1)] = s.Addr
	}
	out.far = strings.TrimPrefix(far.HTTP, "http://")
	c := operatorOf(b, l, "dc2")
	defer c.CloseIdleConnections()
	testutil.Await(b, waitLimit, "keys in dc2", func(ctx context.Context) error {
		for i := range kvKeys {
			req, err := http.NewRequestWithContext(ctx, http.MethodPut, strings.Replace(near[0].HTTP, "http:", "https:",
				1)+"/v1/kv/"+kvKey(i), strings.NewReader("hello world"))
			if err != nil {
				return err
			}
			if _, err = doRequest(c, req); err != nil {
				return err
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, far.HTTP+"/v1/kv/x?dc=dc2", nil)
		if err != nil {
			return err
		}
		_, err = doRequest(http.DefaultClient, req)
		return err
	})
	testutil.Await(b, waitLimit, "leadership at the intended server", func(ctx context.Context) error {
		return out.place(ctx, b, l, near, leads)
	})
	return out
}

// place returns nil if the server of dc2 that serves dc1 leads (or follows, if
// leads is false). Otherwise it transfers leadership and returns an error.
func (k *kvBench) place(ctx context.Context, b testing.TB, l *loopback, near []*subprocess.Server, leads bool) error {
	st, err := k.status(ctx)
	if err != nil {
		return err
	}
	k.leader, k.follower, k.responder = "", "", st.Node
	to := st.Node
	for i, s := range near {
		node := fmt.Sprintf("srv%d", i+1)
		if s.Addr == st.Leader {
			k.leader = strings.TrimPrefix(s.HTTP, "http://")
			if (node == st.Node) == leads {
				to = ""
			}
			continue
		}
		k.follower = strings.TrimPrefix(s.HTTP, "http://")
		if !leads && node != st.Node {
			to = node
		}
	}
	if to != "" && k.leader != "" {
		err = transferLeader(ctx, b, l, near[0].Addr, to)
		return errors.Join(fmt.Errorf("%s serves dc1, leadership is being transferred to %s", st.Node, to), err)
	}
	if k.leader == "" {
		return errors.New("no leader")
	}
	return nil
}

// status returns the status of the server of dc2 that serves dc1.
func (k *kvBench) status(ctx context.Context) (st api.Status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.far+api.StatusPath+"?dc=dc2", nil)
	if err != nil {
		return st, err
	}
	body, err := doRequest(http.DefaultClient, req)
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	return st, err
}

func transferLeader(ctx context.Context, b testing.TB, l *loopback, addr, node string) error {
	config := operatorOf(b, l, "dc2").Transport.(*http.Transport).TLSClientConfig
	config.ServerName = "server.dc2." + tlsutil.DefaultDomain
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer cc.Close()
	_, err = pb.NewOperatorServiceClient(cc).TransferLeader(ctx, &pb.TransferLeaderRequest{Node: node})
	return err
}

// operatorOf returns an HTTP client with an operator's certificate.
func operatorOf(b testing.TB, l *loopback, dc string) *http.Client {
	b.Helper()
	files, roots := l.ca.Files(b, tlsutil.RoleOperator, "joe", dc), x509.NewCertPool()
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		b.Fatal(err)
	}
	pem, err := os.ReadFile(files.CA)
	if err != nil {
		b.Fatal(err)
	}
	roots.AppendCertsFromPEM(pem)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
	}}
}

func doRequest(c *http.Client, req *http.Request) ([]byte, error) {
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
