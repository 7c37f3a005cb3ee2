// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// operatorTimeout bounds a command that asks a server one thing.
const operatorTimeout = 30 * time.Second

// operatorCall is where a command of an operator calls.
type operatorCall struct{ keyringCall }

// connect connects as the operator that the flags name. The caller calls done at the end.
func (o *operatorCall) connect(cmd *cobra.Command) (c pb.OperatorServiceClient, done func(), err error) {
	if err := o.check(); err != nil {
		return nil, nil, err
	}
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil {
		return nil, nil, err
	}
	return o.dial(cmd.Context(), id)
}

func (o *operatorCall) dial(ctx context.Context, id *tlsutil.Identity) (c pb.OperatorServiceClient, done func(), err error) {
	conn, err := dialServer(ctx, id, o.server, o.node, o.dc)
	if err != nil {
		return nil, nil, err
	}
	var taken atomic.Bool
	cc, err := api.NewGRPCClient(func(context.Context) (net.Conn, error) {
		if taken.Swap(true) {
			return nil, fmt.Errorf("connection to %s was lost", o.server)
		}
		return conn, nil
	})
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return pb.NewOperatorServiceClient(cc), func() {
		cc.Close()
		conn.Close() // if gRPC never took it
	}, nil
}

// explain makes of a call's error one for people; what is the command's name, after wanfed.
func (o *operatorCall) explain(ctx context.Context, what string, err error) error {
	switch s, ok := status.FromError(err); {
	case err == nil:
		return nil
	case context.Cause(ctx) != nil:
		return fmt.Errorf("%s at %s: %w", what, o.server, context.Cause(ctx))
	case ok:
		return fmt.Errorf("%s at %s: %s", what, o.server, printable(s.Message()))
	}
	return fmt.Errorf("%s at %s: %w", what, o.server, err)
}

// ask connects and asks one thing. doubt is added to an error that leaves open whether it was done.
func (o *operatorCall) ask(cmd *cobra.Command, what, doubt string, call func(ctx context.Context, c pb.OperatorServiceClient) error) error {
	c, done, err := o.connect(cmd)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(cmd.Context(), operatorTimeout)
	defer cancel()
	err = call(ctx, c)
	if doubt != "" && leavesOpen(ctx, err) {
		return fmt.Errorf("%w; %s", o.explain(ctx, what, err), doubt)
	}
	return o.explain(ctx, what, err)
}

// leavesOpen says whether what was asked with ctx may be done although the answer is err.
func leavesOpen(ctx context.Context, err error) bool {
	if err == nil || errors.Is(resource.FromStatus(err), resource.ErrNotLeader) { // nobody has done it
		return false
	}
	code := status.Code(err)
	return ctx.Err() != nil || code == codes.Unknown || code == codes.Unavailable || code == codes.DeadlineExceeded
}
