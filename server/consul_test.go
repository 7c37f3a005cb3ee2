// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// consulLab has clients of Consul that are connected to a server of dc1. dc1
// and dc2 run in this process, joined by gateways.
type consulLab struct {
	writer *consul.Client // has the certificate of an operator of dc1
	reader *consul.Client // has no certificate, and uses the loopback address
	url    string         // of the server of dc1
	// operator has the certificate of writer, which is in files.
	operator *http.Client
	files    tlsutil.Files
}

// newConsulLab starts dc1 and dc2. dc2 accepts writes that servers of dc1
// forward.
func newConsulLab(t *testing.T) *consulLab {
	t.Helper()
	testutil.Cluster(t)
	dir := t.TempDir()
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role tlsutil.Role, dc, node string) tlsutil.Files {
		f, err := pki.Issue(role, dc, node)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	start := func(dc string, primaryGateways ...string) Addrs {
		f := issue(tlsutil.RoleServer, dc, "srv1")
		p, a := startServer(t, Config{
			DC: dc, Node: "srv1", PrimaryDC: "dc1", PrimaryGateways: primaryGateways, DataDir: filepath.Join(dir, dc),
			CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key, AllowRemoteWritesFrom: []string{"dc1"}, ReadsFrom: []string{"dc1"},
		})
		t.Cleanup(func() { p.end(t) })
		return a
	}
	startGW := func(dc string, a Addrs) (wanAddr string) {
		p, wan := startGateway(t, issue(tlsutil.RoleGateway, dc, "gw1"), a.Server, filepath.Join(dir, "gw-"+dc))
		t.Cleanup(func() { p.end(t) })
		return wan
	}
	a1 := start("dc1")
	a2 := start("dc2", startGW("dc1", a1))
	startGW("dc2", a2)
	untilFederated(t, a1.HTTP, a2.HTTP)

	operator, addr := issue(tlsutil.RoleOperator, "dc1", "joe"), strings.TrimPrefix(a1.HTTP, "http://")
	identity, err := tlsutil.Load(operator, tlsutil.DefaultDomain, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &consulLab{
		writer: consulClient(t, &consul.Config{Address: addr, Scheme: "https", TLSConfig: consul.TLSConfig{
			CAFile: operator.CA, CertFile: operator.Cert, KeyFile: operator.Key,
		}}),
		reader: consulClient(t, &consul.Config{Address: addr}),
		url:    a1.HTTP,
		files:  operator,
		operator: &http.Client{Transport: &http.Transport{
			TLSClientConfig: identity.ClientConfig("localhost"), DisableKeepAlives: true,
		}},
	}
}

func consulClient(t *testing.T, cfg *consul.Config) *consul.Client {
	t.Helper()
	cfg.Transport = consul.DefaultNonPooledConfig().Transport
	c, err := consul.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestConsulClient uses the supported calls of the official client of Consul,
// in dc1, and in dc2 through dc1 and two gateways.
func TestConsulClient(t *testing.T) {
	lab := newConsulLab(t)
	for _, dc := range []string{"dc1", "dc2"} {
		for name, test := range map[string]func(t *testing.T, c *consulLab, dc string){
			"KV": testConsulKV, "KV blocking": testConsulKVBlocking, "KV rejected": testConsulKVRejected,
			"transaction": testConsulTxn, "session": testConsulSession, "locks": testConsulLocks, "catalog": testConsulCatalog, "agent": testConsulAgent,
			"operator": testConsulOperator, "recorded requests": testRecordedRequests,
		} {
			t.Run(name+" in "+dc, func(t *testing.T) { test(t, lab, dc) })
		}
	}
}
