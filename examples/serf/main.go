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
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

func main() {
	name, dc := flag.String("name", "", "name of this node"), flag.String("dc", "", "its datacenter")
	listen := flag.String("listen", "", "`ip:port` that its gateway and the other nodes of its datacenter dial")
	join := flag.String("join", "", "whom to join: `node.dc/ip:port` of its datacenter; *.dc/192.0.2.2:1 is any node of another")
	ca, cert, key := flag.String("ca", "wanfed-agent-ca.pem", "CA"), flag.String("cert", "", "certificate"), flag.String("key", "", "its key")
	say := flag.String("say", "hello", "event to send to everybody after joining")
	book, gateways := &wanfed.Book{}, map[string][]wanfed.Hop{}
	flag.Func("gateway", "`dc=host:port` of a gateway to another datacenter; may be given several times", func(s string) error {
		to, addr, _ := strings.Cut(s, "=")
		gateways[to] = append(gateways[to], wanfed.Hop{Addr: addr, Via: "configured"})
		_, _, err := net.SplitHostPort(addr)
		return err
	})
	flag.Parse()

	// The tunnel: the book has the ways to others, the dialer takes them, the mux accepts, the tunnel carries the gossip.
	book.Store(&wanfed.Routes{Servers: map[string]string{}, Hops: gateways})
	id, err := tlsutil.Load(tlsutil.Files{CA: *ca, Cert: *cert, Key: *key}, tlsutil.DefaultDomain, nil)
	exitOn(err)
	dialer, err1 := wanfed.NewDialer(wanfed.DialerConfig{Identity: id, Book: book})
	mux, err2 := wanfed.NewMux(wanfed.MuxConfig{Identity: id})
	tunnel, err3 := wanfed.NewTunnel(wanfed.TunnelConfig{Identity: id, Dialer: dialer, Mux: mux, Advertise: *listen})
	ln, err4 := net.Listen("tcp", *listen)
	exitOn(errors.Join(id.CheckHolder(tlsutil.RoleServer, *name, *dc), err1, err2, err3, err4))
	base, stop := context.WithCancel(context.Background())
	group, ctx := errgroup.WithContext(base)
	group.Go(func() error { return mux.Run(ctx, ln) })
	group.Go(func() error { return tunnel.Run(ctx) })

	// serf as always, but for names and transport.
	events, ml := make(chan serf.Event, 64), memberlist.DefaultWANConfig()
	go follow(events, *dc, book)
	ml.RequireNodeNames, ml.Transport, ml.LogOutput = true, tunnel.Transport(wanfed.PoolWAN), io.Discard
	conf := serf.DefaultConfig()
	conf.NodeName, conf.MemberlistConfig, conf.EventCh, conf.LogOutput = *name+"."+*dc, ml, events, io.Discard
	s, err := serf.Create(conf)
	exitOn(err)

	signals, _ := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	others := strings.Fields(*join)
	for _, err = s.Join(others, false); err != nil && signals.Err() == nil; _, err = s.Join(others, false) {
		log.Print(err)
		time.Sleep(time.Second)
	}
	exitOn(s.UserEvent(conf.NodeName+": "+*say, nil, false))
	<-signals.Done()
	err = errors.Join(s.Leave(), s.Shutdown())
	stop() // last: the goodbye goes through the tunnel
	exitOn(errors.Join(err, group.Wait()))
}

// follow says what happens, and enters this datacenter's nodes in the book: what comes for them is handed on to them.
func follow(events <-chan serf.Event, own string, book *wanfed.Book) {
	for e := range events {
		fmt.Print(e)
		change, _ := e.(serf.MemberEvent) // of nobody when it is another event
		for _, m := range change.Members {
			fmt.Print(" ", m.Name)
			if node, dc, _ := strings.Cut(m.Name, "."); dc == own {
				servers := maps.Clone(book.Load().Servers) // nobody changes what is in the book
				servers[node] = net.JoinHostPort(m.Addr.String(), fmt.Sprint(m.Port))
				book.Store(&wanfed.Routes{Servers: servers, Hops: book.Load().Hops})
			}
		}
		fmt.Println()
	}
}

func exitOn(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
