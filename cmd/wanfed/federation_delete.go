// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Bounds of "federation delete".
const (
	deleteDialTimeout = 10 * time.Second
	deleteTimeout     = 30 * time.Second // all of it
)

func newFederationDelete() *cobra.Command {
	var dc, server string
	var force bool
	c := &cobra.Command{
		Use:   "delete DC",
		Short: "Delete the federation state of a datacenter that is gone for good",
		Long: `Delete the federation state of datacenter DC, so that no other datacenter dials its gateways any more. A datacenter that
is alive writes its state again: stop its servers first. Deleting one of which servers are alive needs --force.

The primary owns the states, so a server of the primary does it: --dc is the primary's name, and --server a server's port,
or the LAN address of any gateway from which the primary is reached. It needs an operator's certificate.`,
		Example: `  wanfed tls cert create --cli --dc dc1
  wanfed federation delete dc3 --dc dc1 --server 10.0.0.5:8300 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-cli-wanfed-0.pem --key-file dc1-cli-wanfed-0-key.pem`,
		Args:              oneDatacenter,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(required(dc, "dc", "the primary's name"), required(server, "server", "host:port of a server or gateway")); err != nil {
				return usageError{faults(err)}
			}
			if err := tlsutil.CheckLabel(dc); err != nil {
				return usagef("--dc: %w", err)
			}
			if _, _, err := net.SplitHostPort(server); err != nil {
				return usagef("--server: %w; write it as host:port", err)
			}
			id, err := loadIdentity(cmd, "federation delete")
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), deleteTimeout)
			defer cancel()
			changed, err := deleteState(ctx, id, server, dc, args[0], force)
			if err != nil {
				return err
			}
			if !changed {
				fmt.Fprintf(cmd.OutOrStdout(), "%s had no federation state\n", args[0])
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "deleted the federation state of %s\n", args[0])
			return nil
		},
	}
	flags := c.Flags()
	flags.StringVar(&dc, "dc", "", "name of the primary `datacenter` (required)")
	flags.StringVar(&server, "server", "", "`host:port` of one of its servers, or of a gateway (required)")
	flags.BoolVar(&force, "force", false, "delete it although servers of it are alive")
	addTLSFlags(c, "required")
	return c
}

func required(value, flag, what string) error {
	if value == "" {
		return fmt.Errorf("--%s is required: %s", flag, what)
	}
	return nil
}

// deleteState asks a server of datacenter primary, at addr, to delete the state of dc. changed is false when there was none.
func deleteState(ctx context.Context, id *tlsutil.Identity, addr, primary, dc string, force bool) (changed bool, err error) {
	conn, err := dialServer(ctx, id, addr, "", primary)
	if err != nil {
		return false, err
	}
	var taken atomic.Bool
	cc, err := api.NewGRPCClient(func(context.Context) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, fmt.Errorf("connection to %s was lost", addr)
		}
		return conn, nil
	})
	if err != nil {
		return false, errors.Join(err, conn.Close())
	}
	defer func() {
		cc.Close()
		conn.Close() // if gRPC never took it
	}()
	resp, err := pb.NewFederationServiceClient(cc).Apply(ctx, &pb.ApplyFederationStateRequest{
		Op: pb.ApplyFederationStateRequest_OP_DELETE, State: &pb.FederationState{Datacenter: dc}, Force: force,
	})
	if ctx.Err() != nil {
		return false, fmt.Errorf("delete federation state of %s at %s: %w; it may be deleted or not: see wanfed federation list", dc, addr, ctx.Err())
	}
	if err != nil {
		return false, fmt.Errorf("delete federation state of %s at %s: %s", dc, addr, printable(status.Convert(err).Message()))
	}
	return resp.Changed, nil
}

// dialServer connects to a server of dc, any one if node is empty, through addr: a server itself, or a gateway, which goes by
// the SNI.
func dialServer(ctx context.Context, id *tlsutil.Identity, addr, node, dc string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, deleteDialTimeout)
	defer cancel()
	sni := tlsutil.ServerName(node, dc, id.Domain())
	d := tls.Dialer{NetDialer: &net.Dialer{}, Config: id.ClientConfig(sni, wanfed.ProtoGRPC)}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return nil, fmt.Errorf("no server answers at %s: %w; --server must be a server of %s, or a gateway", addr, op.Err, dc)
		}
		hint := ""
		op, _ := errors.AsType[*net.OpError](err)
		if _, other := errors.AsType[x509.HostnameError](err); other || op != nil && op.Op == "remote error" {
			hint = fmt.Sprintf("; --server must be a server of %s, or a gateway", dc)
		}
		return nil, fmt.Errorf("reach %s through %s: %s%s", sni, addr, tlsutil.DescribeError(err), hint)
	}
	return conn, nil
}
