// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

func main() {
	listen := flag.String("listen", "", "`ip:port` that gateways and the other nodes of this datacenter dial")
	join := flag.String("join", "", "another `datacenter`, or node.dc/ip:port of this one, to join")
	ca := flag.String("ca", "wanfed-agent-ca.pem", "`file` of the CA")
	cert, key := flag.String("cert", "", "`file` of the certificate"), flag.String("key", "", "`file` of its key")
	gateways := map[string][]string{}
	flag.Func("gateway", "`dc=host:port` of a gateway to another datacenter; repeatable", func(s string) error {
		dc, addr, _ := strings.Cut(s, "=")
		gateways[dc] = append(gateways[dc], addr)
		return nil // NewNode checks the addresses
	})
	flag.Parse()

	// The tunnel endpoint. Its certificate contains its name and datacenter.
	id, err := tlsutil.Load(tlsutil.Files{CA: *ca, Cert: *cert, Key: *key}, tlsutil.DefaultDomain, nil)
	exitOn(err)
	node, err := wanfed.NewNode(wanfed.NodeConfig{Identity: id, Advertise: *listen, Gateways: gateways})
	exitOn(err)
	if name, addr, ok := strings.Cut(*join, "/"); ok {
		node.SetServer(name, addr) // traffic for that node may arrive before the join
	} else if *join != "" {
		*join = wanfed.AnyServer(*join)
	}
	ln, err := net.Listen("tcp", *listen)
	exitOn(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx, ln); stop() }()

	// memberlist with the tunnel's name and transport.
	events := make(chan memberlist.NodeEvent, 64)
	go follow(events, node)
	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames, conf.Transport = node.Name(), true, node.Tunnel.Transport(wanfed.PoolWAN)
	conf.Events, conf.LogOutput = &memberlist.ChannelEventDelegate{Ch: events}, io.Discard
	list, err := memberlist.Create(conf)
	exitOn(err)

	signals, _ := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	for *join != "" && signals.Err() == nil {
		if _, err = list.Join([]string{*join}); err == nil {
			break
		}
		log.Print(err)
		time.Sleep(time.Second)
	}
	<-signals.Done()
	err = errors.Join(list.Leave(5*time.Second), list.Shutdown())
	stop() // last: the leave message uses the tunnel
	exitOn(errors.Join(err, <-ended))
}

// follow prints the members, and passes their addresses to the node. The node
// relays traffic to the members of its datacenter.
func follow(events <-chan memberlist.NodeEvent, node *wanfed.Node) {
	alive := map[string]bool{}
	for e := range events {
		node.SetServer(e.Node.Name, e.Node.Address())
		if alive[e.Node.Name] = true; e.Event == memberlist.NodeLeave {
			delete(alive, e.Node.Name)
		}
		fmt.Println("members:", strings.Join(slices.Sorted(maps.Keys(alive)), " "))
	}
}

func exitOn(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
