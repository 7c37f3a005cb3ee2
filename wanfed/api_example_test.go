// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// demo is a CA with a temporary directory for the files of its certificates.
type demo struct {
	ca  tlsutil.KeyPair
	dir string
}

func newDemo() *demo {
	dir, err := os.MkdirTemp("", "wanfed-example")
	exitOn(err)
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	exitOn(err)
	return &demo{ca, dir}
}

func (d *demo) identity(node, dc string) *tlsutil.Identity { return identity(d.ca, d.dir, node, dc) }
func (d *demo) close()                                     { os.RemoveAll(d.dir) }

// A node has one port. The port serves gossip of both pools, streams, and
// protocols of the program.
func ExampleNewNode() {
	d := newDemo()
	defer d.close()
	ln := listen()
	node, err := wanfed.NewNode(wanfed.NodeConfig{
		Identity:  d.identity("a", "dc1"),
		Advertise: ln.Addr().String(),
		Gateways:  map[string][]string{"dc2": {"gw.dc2.example:8443"}},
	})
	exitOn(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- node.Run(ctx, ln) }()

	fmt.Println(node.Name())
	for _, p := range node.Dialer.PathsTo("dc2") {
		fmt.Println(p.Addr, p.Via)
	}
	cancel()
	exitOn(<-ended)
	// Output:
	// a.dc1
	// gw.dc2.example:8443 configured address
}

// memberlist uses the tunnel as its transport. The tunnel finds members of
// other datacenters by name. RequireNodeNames is therefore required.
func ExampleTunnel_Transport() {
	d := newDemo()
	defer d.close()
	ln := listen()
	node, err := wanfed.NewNode(wanfed.NodeConfig{
		Identity: d.identity("a", "dc1"), Advertise: ln.Addr().String(),
	})
	exitOn(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- node.Run(ctx, ln) }()

	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames, conf.LogOutput = node.Name(), true, io.Discard
	conf.Transport = node.Tunnel.Transport(wanfed.PoolWAN)
	list, err := memberlist.Create(conf)
	exitOn(err)
	fmt.Println(list.LocalNode().Name)
	exitOn(list.Shutdown())
	cancel()
	exitOn(<-ended)
	// Output: a.dc1
}

// A Mux serves several protocols on one port. The client selects the protocol
// by ALPN.
func ExampleMux() {
	d := newDemo()
	defer d.close()
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: d.identity("a", "dc1")})
	exitOn(err)
	mux.Handle("greet/1", []tlsutil.Role{tlsutil.RoleServer}, false,
		func(_ context.Context, c *tls.Conn, p tlsutil.Peer) {
			defer c.Close()
			fmt.Fprintf(c, "hello, %s of %s", p.Node, p.DC)
		})
	ln := listen()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- mux.Run(ctx, ln) }()

	// "a.server.dc1.wanfed" is the name in the certificate of the server.
	c, err := tls.Dial("tcp", ln.Addr().String(), d.identity("b", "dc1").ClientConfig("a.server.dc1.wanfed", "greet/1"))
	exitOn(err)
	b, err := io.ReadAll(c)
	exitOn(err)
	fmt.Println(string(b))
	c.Close()
	cancel()
	exitOn(<-ended)
	// Output: hello, b of dc1
}

// A Dialer opens connections for protocols of the program. In the local
// datacenter it dials servers directly, and to other datacenters it uses the
// paths of the address book. An error contains the cause and a remedy.
func ExampleDialer_Dial() {
	d := newDemo()
	defer d.close()
	book := &wanfed.SharedAddressBook{}
	book.Store(&wanfed.AddressBook{
		Servers: map[string]string{"a": "10.0.0.1:8300"},
		Paths:   map[string][]wanfed.Path{"dc2": {{Addr: "gw.dc2.example:8443", Via: "remote gateway"}}},
	})
	dialer, err := wanfed.NewDialer(wanfed.DialerConfig{Identity: d.identity("b", "dc1"), AddressBook: book})
	exitOn(err)
	_, err = dialer.Dial(context.Background(), wanfed.Target{DC: "dc3"}, "greet/1")
	fmt.Println(strings.NewReplacer(": ", ":\n", "; ", ";\n").Replace(err.Error()))
	// Output:
	// no path to datacenter dc3:
	// the address book has no gateway for it;
	// check that it is federated and that one of its gateways is healthy
}
