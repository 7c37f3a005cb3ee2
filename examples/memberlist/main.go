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
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

func main() {
	name, dc := flag.String("name", "", "name of this node"), flag.String("dc", "", "its datacenter")
	listen := flag.String("listen", "", "`ip:port` that its gateway and the other nodes of its datacenter dial")
	join := flag.String("join", "", "whom to join: `node.dc/ip:port` of its datacenter; *.dc/192.0.2.2:1 is any node of another")
	ca, cert, key := flag.String("ca", "wanfed-agent-ca.pem", "CA"), flag.String("cert", "", "certificate"), flag.String("key", "", "its key")
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

	// memberlist as always, but for names and transport.
	events := make(chan memberlist.NodeEvent, 64)
	go follow(events, *dc, book)
	conf := memberlist.DefaultWANConfig()
	conf.Name, conf.RequireNodeNames = *name+"."+*dc, true
	conf.Transport = tunnel.Transport(wanfed.PoolWAN)
	conf.Events, conf.LogOutput = &memberlist.ChannelEventDelegate{Ch: events}, io.Discard
	list, err := memberlist.Create(conf)
	exitOn(err)

	signals, _ := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	others := strings.Fields(*join)
	for _, err = list.Join(others); err != nil && signals.Err() == nil; _, err = list.Join(others) {
		log.Print(err)
		time.Sleep(time.Second)
	}
	<-signals.Done()
	err = errors.Join(list.Leave(5*time.Second), list.Shutdown())
	stop() // last: the goodbye goes through the tunnel
	exitOn(errors.Join(err, group.Wait()))
}

// follow says who is there, and enters this datacenter's nodes in the book: what comes for them is handed on to them.
func follow(events <-chan memberlist.NodeEvent, own string, book *wanfed.Book) {
	alive := map[string]bool{}
	for e := range events {
		if node, dc, _ := strings.Cut(e.Node.Name, "."); dc == own && e.Event == memberlist.NodeJoin {
			servers := maps.Clone(book.Load().Servers) // nobody changes what is in the book
			servers[node] = e.Node.Address()
			book.Store(&wanfed.Routes{Servers: servers, Hops: book.Load().Hops})
		}
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
