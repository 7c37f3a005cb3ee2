// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/tlsutil"
)

// holderCommand is the first argument of a client process.
const holderCommand = "hold"

// A client process prints readyLine when it holds all leases, and lostLine for
// each lease that it has lost.
const (
	readyLine = "holds all leases"
	lostLine  = "lost a lease"
)

// durationFor returns the duration of a lease that an Elector renews in the
// given interval.
func durationFor(renew time.Duration) time.Duration { return 4 * renew }

// runHolder holds leases until the end of stdin.
func runHolder(args []string) error {
	var files tlsutil.Files
	fs := flag.NewFlagSet(holderCommand, flag.ContinueOnError)
	addr := fs.String("addr", "", "server port")
	fs.StringVar(&files.CA, "ca", "", "CA certificate")
	fs.StringVar(&files.Cert, "cert", "", "certificate")
	fs.StringVar(&files.Key, "key", "", "private key")
	from, to := fs.Int("from", 0, "first lease"), fs.Int("to", 1, "end of the leases")
	renew := fs.Duration("renew", 0, "interval of renewals")
	alone := fs.Bool("alone", false, "one client per lease")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx := subprocess.UntilEOF(context.Background(), os.Stdin)
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, nil)
	if err != nil {
		return err
	}
	cc, err := api.NewServerClient(id, "dc1", api.Addrs(*addr))
	if err != nil {
		return err
	}
	defer cc.Close()
	shared := lease.NewClient(cc)
	var held atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	starting := make(chan struct{}, 32) // acquisitions at the same time
	for i := *from; i < *to; i++ {
		client := shared
		if *alone {
			client = lease.NewClient(cc)
		}
		e, err := lease.NewElector(lease.ElectorConfig{
			Client: client, Name: fmt.Sprintf("bench-%d", i), Holder: "leasebench", Duration: durationFor(*renew),
		})
		if err != nil {
			return err
		}
		select {
		case starting <- struct{}{}:
		case <-gctx.Done():
			return g.Wait()
		}
		g.Go(func() error {
			return e.Run(gctx, func(h *lease.Held) error {
				<-starting
				if held.Add(1) == int64(*to-*from) {
					fmt.Println(readyLine)
				}
				<-h.Done()
				if gctx.Err() == nil {
					fmt.Println(lostLine)
					starting <- struct{}{}
				}
				return nil
			})
		})
	}
	return g.Wait()
}
