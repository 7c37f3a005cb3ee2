// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

func main() {
	listen := flag.String("listen", "", "`ip:port` that gateways and the other nodes of this datacenter dial")
	join := flag.String("join", "", "another `datacenter`, or node.dc/ip:port of this one, to join")
	ca := flag.String("ca", "wanfed-agent-ca.pem", "`file` of the CA")
	cert, key := flag.String("cert", "", "`file` of the certificate"), flag.String("key", "", "`file` of its key")
	message := flag.String("message", "hello", "`text` of the event that is sent after joining")
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

	// serf with the tunnel's name and transport.
	events, ml := make(chan serf.Event, 64), memberlist.DefaultWANConfig()
	go follow(events, node)
	ml.RequireNodeNames, ml.Transport, ml.LogOutput = true, node.Tunnel.Transport(wanfed.PoolWAN), io.Discard
	conf := serf.DefaultConfig()
	conf.NodeName, conf.MemberlistConfig, conf.EventCh, conf.LogOutput = node.Name(), ml, events, io.Discard
	s, err := serf.Create(conf)
	exitOn(err)

	signals, _ := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	for *join != "" && signals.Err() == nil {
		if _, err = s.Join([]string{*join}, false); err == nil {
			break
		}
		log.Print(err)
		time.Sleep(time.Second)
	}
	exitOn(s.UserEvent(node.Name()+": "+*message, nil, false))
	<-signals.Done()
	err = errors.Join(s.Leave(), s.Shutdown())
	stop() // last: the leave message uses the tunnel
	exitOn(errors.Join(err, <-ended))
}

// follow prints the events, and passes the addresses of members to the node.
// The node relays traffic to the members of its datacenter.
func follow(events <-chan serf.Event, node *wanfed.Node) {
	for e := range events {
		fmt.Print(e)
		change, _ := e.(serf.MemberEvent) // without members if it is another event
		for _, m := range change.Members {
			fmt.Print(" ", m.Name)
			node.SetServer(m.Name, net.JoinHostPort(m.Addr.String(), fmt.Sprint(m.Port)))
		}
		fmt.Println()
	}
}

func exitOn(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
