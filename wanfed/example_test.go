// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Two programs in two datacenters gossip with memberlist. A gateway forwards
// the TLS connections of both programs by SNI. The function gossip contains the
// code of one program.
func Example() {
	dir, err := os.MkdirTemp("", "wanfed")
	exitOn(err)
	defer os.RemoveAll(dir)
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	exitOn(err)
	group, ctx := errgroup.WithContext(context.Background())
	ctx, stop := context.WithCancel(ctx)

	ln1, ln2, lnGateway := listen(), listen(), listen()
	routes, err := gateway.NewTable([]gateway.Route{
		{Match: "*.dc1.wanfed", To: []string{ln1.Addr().String()}},
		{Match: "*.dc2.wanfed", To: []string{ln2.Addr().String()}},
	})
	exitOn(err)
	wan := gateway.NewListener("wan", lnGateway)
	wan.SetTable(routes)
	proxy, err := gateway.New(gateway.Config{})
	exitOn(err)
	group.Go(func() error { return proxy.Run(ctx, wan) })

	// gossip starts a node at ln, and a memberlist that uses the node.
	gossip := func(id *tlsutil.Identity, ln net.Listener, otherDC string) *memberlist.Memberlist {
		node, err := wanfed.NewNode(wanfed.NodeConfig{
			Identity: id, Advertise: ln.Addr().String(),
			Gateways: map[string][]string{otherDC: {lnGateway.Addr().String()}},
		})
		exitOn(err)
		group.Go(func() error { return node.Run(ctx, ln) })

		conf := memberlist.DefaultWANConfig()
		conf.Name, conf.RequireNodeNames = node.Name(), true
		conf.Transport = node.Tunnel.Transport(wanfed.PoolWAN)
		conf.LogOutput = io.Discard
		list, err := memberlist.Create(conf)
		exitOn(err)
		return list
	}
	list1 := gossip(identity(ca, dir, "a", "dc1"), ln1, "dc2")
	list2 := gossip(identity(ca, dir, "b", "dc2"), ln2, "dc1")
	_, err = list2.Join([]string{wanfed.AnyServer("dc1")})
	exitOn(err)

	var names []string
	for _, m := range list2.Members() {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	fmt.Println(names)

	exitOn(errors.Join(list1.Shutdown(), list2.Shutdown()))
	stop()
	exitOn(group.Wait())
	// Output: [a.dc1 b.dc2]
}

// identity issues a certificate for a node, like the command wanfed tls cert
// create, and loads the certificate.
func identity(ca tlsutil.KeyPair, dir, node, dc string) *tlsutil.Identity {
	cert, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: node, DC: dc, CA: ca})
	exitOn(err)
	files := tlsutil.Files{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, node+".pem"),
		Key: filepath.Join(dir, node+"-key.pem"),
	}
	for path, b := range map[string][]byte{files.CA: ca.Cert, files.Cert: cert.Cert, files.Key: cert.Key} {
		exitOn(os.WriteFile(path, b, 0o600))
	}
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, nil)
	exitOn(err)
	return id
}

func listen() net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	exitOn(err)
	return ln
}

func exitOn(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
