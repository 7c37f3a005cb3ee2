// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func newKeyring() *cobra.Command {
	c := newGroup("keyring", "Make gossip keys, and change them everywhere",
		newKeyringGenerate(), newKeyringInstall(), newKeyringUse(), newKeyringRemove(), newKeyringList())
	c.Long = `Make gossip keys, and change them on all servers of the federation.

Gossip travels in TLS connections between servers with certificates, and needs no keys. With them it is encrypted once
more (AES-256-GCM), so that a server takes part only if it has a key besides its certificate. All servers have the same
ring of keys, for the pools of their datacenter and the one between datacenters: gossip is encrypted with the primary,
and whatever any of the keys decrypts is understood. Each server keeps the ring in its data dir.

To change the key, without losing gossip:

  install   adds the new key to the ring of every server
  use       makes it the primary, once every living server has it
  remove    takes the old key away, once every server uses the new one

Each says which servers it did not reach. One that was cut off, or down, takes the new ring from any other as soon as
it can be reached again, if it still has one of the keys of that ring. Therefore "remove" waits for it, unless forced.
A server that shares no key any more is taught by giving it one: install --only.

To begin: make a key, put it into a file (mode 0600) on each server, and start every server with --encrypt-file. Where
servers run already, start each three times, one server after the other:

  1. with --encrypt-file, --encrypt-verify-incoming=false and --encrypt-verify-outgoing=false
  2. with --encrypt-file and --encrypt-verify-incoming=false
  3. with --encrypt-file

From then on the ring in the data dir counts, and the file only for servers that are new: after a change, put the new
key into it. To end, go the steps backwards, and at last start each server without --encrypt-file and with keyring.json
removed from its data dir.

Keys are named by fingerprints, which tell nothing of them, and are changed by operators: it takes a certificate of
"wanfed tls cert create --cli".`
	c.Example = `  wanfed keyring generate --file gossip.key
  wanfed keyring install - --dc dc1 --server 10.0.0.5:8300 <gossip.key
  wanfed keyring use FINGERPRINT --dc dc1 --server 10.0.0.5:8300
  wanfed keyring list --dc dc1 --server 10.0.0.5:8300
  wanfed keyring remove OLD-FINGERPRINT --dc dc1 --server 10.0.0.5:8300`
	return c
}

// Bounds of the commands that ask servers.
const (
	keyringTimeout = 45 * time.Second // all of it
	// keyringPatience is after how long they say what they wait for.
	keyringPatience = time.Second
)

// keyringCall is where a command calls, and how.
type keyringCall struct {
	dc, server, node string
}

// addKeyringFlags gives c the flags that say where to call; which says what --dc must be.
func (k *keyringCall) addFlags(c *cobra.Command, which string) {
	flags := c.Flags()
	flags.StringVar(&k.dc, "dc", "", "name of "+which+" (required)")
	flags.StringVar(&k.server, "server", "", "`host:port` of one of its servers, or of a gateway (required)")
	addTLSFlags(c, "required")
	_ = c.RegisterFlagCompletionFunc("dc", completeDatacenters)
}

func (k *keyringCall) check() error {
	err := errors.Join(required(k.dc, "dc", "a datacenter's name"), required(k.server, "server", "host:port of a server or gateway"))
	if err != nil {
		return usageError{faults(err)}
	}
	if err := tlsutil.CheckLabel(k.dc); err != nil {
		return usagef("--dc: %w", err)
	}
	if k.node != "" {
		if err := tlsutil.CheckLabel(k.node); err != nil {
			return usagef("--node: %w", err)
		}
	}
	if _, _, err := net.SplitHostPort(k.server); err != nil {
		return usagef("--server: %w; write it as host:port", err)
	}
	return nil
}

// do connects, as the operator that the flags name, and runs call.
func (k *keyringCall) do(cmd *cobra.Command, call func(ctx context.Context, c pb.KeyringServiceClient) error) error {
	if err := k.check(); err != nil {
		return err
	}
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), keyringTimeout)
	defer cancel()
	conn, err := dialServer(ctx, id, k.server, k.node, k.dc)
	if err != nil {
		return err
	}
	defer conn.Close() // if gRPC never took it
	var taken atomic.Bool
	cc, err := api.NewGRPCClient(func(context.Context) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, fmt.Errorf("connection to %s was lost", k.server)
		}
		return conn, nil
	})
	if err != nil {
		return err
	}
	defer cc.Close()
	stop := sayWaiting(cmd.ErrOrStderr(), "waiting for the servers of all datacenters to answer")
	err = call(ctx, pb.NewKeyringServiceClient(cc))
	stop()
	if ctx.Err() != nil {
		return fmt.Errorf("keyring %s at %s: %w; it may be done or not: see wanfed keyring list", cmd.Name(), k.server, ctx.Err())
	}
	if s, ok := status.FromError(err); err != nil && ok {
		return fmt.Errorf("keyring %s at %s: %s", cmd.Name(), k.server, printable(s.Message()))
	}
	return err
}

// sayWaiting writes a line to w if stop is not called soon.
func sayWaiting(w io.Writer, line string) (stop func()) {
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		timer := time.NewTimer(keyringPatience)
		defer timer.Stop()
		select {
		case <-timer.C:
			fmt.Fprintln(w, line+" ...")
		case <-stopped:
		}
	})
	return func() {
		close(stopped)
		wg.Wait()
	}
}

// oneKey demands one argument, a key; fingerprints says that its fingerprint will do.
func oneKey(fingerprint bool) cobra.PositionalArgs {
	what := "KEY"
	if fingerprint {
		what = "KEY or its fingerprint"
	}
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("say which key: %s, or - to read it from stdin; see: %s --help", what, cmd.CommandPath())
		case len(args) > 1:
			return usagef("%d arguments: one key at a time; see: %s --help", len(args), cmd.CommandPath())
		}
		return nil
	}
}

// maxKeyLine bounds what is read from stdin, in bytes.
const maxKeyLine = 4096

// keyArg returns the key that the argument is, or that stdin has if it is "-".
func keyArg(cmd *cobra.Command, arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxKeyLine))
	if err != nil {
		return "", fmt.Errorf("read key from stdin: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
