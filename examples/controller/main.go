// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/controller"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/tlsutil"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	var files tlsutil.Files
	fs := flag.NewFlagSet("controller", flag.ContinueOnError)
	addr := fs.String("server", "127.0.0.1:8300", "`address` of a server or a gateway")
	dc := fs.String("datacenter", "dc1", "`name` of the datacenter")
	fs.StringVar(&files.CA, "ca", "ca.pem", "`file` with the CA")
	fs.StringVar(&files.Cert, "cert", "dc1-operator-cli.pem", "`file` with the certificate of an operator")
	fs.StringVar(&files.Key, "key", "dc1-operator-cli-key.pem", "`file` with the key of the certificate")
	if err := fs.Parse(args); err != nil {
		return err
	}
	identity, err := tlsutil.Load(files, tlsutil.DefaultDomain, slog.Default())
	if err != nil {
		return err
	}
	cc, err := api.NewServerClient(identity, *dc, api.Addrs(*addr))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cc.Close()) }()
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	elector, err := lease.NewElector(lease.ElectorConfig{
		Client: lease.NewClient(cc), Name: health.Name, Holder: hostname, Logger: slog.Default(),
	})
	if err != nil {
		return err
	}
	rt, err := controller.New(controller.Config{Client: pb.NewResourceServiceClient(cc), Elector: elector}, health)
	if err != nil {
		return err
	}
	return rt.Run(ctx)
}
