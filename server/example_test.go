// SPDX-License-Identifier: MPL-2.0

package server_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/wanfed/wanfed/server"
)

// A server of datacenter dc1, which is its own primary, runs until it is
// interrupted.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := server.Run(ctx, server.Config{
		DC: "dc1", Node: "srv1", DataDir: "/var/lib/wanfed",
		CAFile: "ca.pem", CertFile: "dc1-server-srv1.pem", KeyFile: "dc1-server-srv1-key.pem",
		Started: func(a server.Addrs) { fmt.Println("listening on", a.Server, "and", a.HTTP) },
	})
	if err != nil {
		log.Fatal(err)
	}
}
