// SPDX-License-Identifier: MPL-2.0

package gateway_test

import (
	"context"
	"fmt"
	"net"

	"github.com/wanfed/wanfed/gateway"
)

func ExampleNew() {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := gateway.NewTable([]gateway.Route{
		{Match: "srv1.server.dc1.wanfed", To: []string{"10.0.0.1:8300"}},
		{Match: "*.server.dc2.wanfed", To: []string{"gw.dc2.example:8443"}, Ordered: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	wan := gateway.NewListener("wan", socket)
	wan.SetTable(table)
	proxy, err := gateway.New(gateway.Config{MaxConns: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	stop() // a program runs the proxy until a signal arrives
	fmt.Println("Run returned", proxy.Run(ctx, wan))
	// Output: Run returned <nil>
}

func ExampleTable_Lookup() {
	table, err := gateway.NewTable([]gateway.Route{
		{Match: "server.dc1.wanfed", To: []string{"10.0.0.1:8300"}},
		{Match: "*.dc2.wanfed", To: []string{"gw.dc2.example:8443"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, sni := range []string{"Server.DC1.wanfed", "srv1.server.dc2.wanfed", "server.dc3.wanfed"} {
		route, ok := table.Lookup(sni)
		fmt.Println(sni, route.To, ok)
	}
	// Output:
	// Server.DC1.wanfed [10.0.0.1:8300] true
	// srv1.server.dc2.wanfed [gw.dc2.example:8443] true
	// server.dc3.wanfed [] false
}

func ExampleHelloParser() {
	var parser gateway.HelloParser
	_, err := parser.Parse([]byte("GET / HTTP/1.1\r\n"))
	fmt.Println(err)
	// Output: not a TLS ClientHello but a plain HTTP request
}
