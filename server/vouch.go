// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
)

// Writes of an operator that go to another datacenter through a server of his own. There his certificate is not seen, only
// the server's, which says whom it speaks for. A server that somebody broke into could say anything, so each datacenter
// decides whose servers it believes (Config.RemoteWritesFrom), and never more than that they speak for their own operators,
// in the methods whose rule is vouched.

// forCaller returns a context for calls to another datacenter that says for which operator they are made. It fails for callers
// that this server may not speak for: resource.ErrDenied.
func (p *parts) forCaller(ctx context.Context) (context.Context, error) {
	who, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case who.Role != tlsutil.RoleOperator:
		return nil, fmt.Errorf("%w: %v may not write: make an operator's certificate with: wanfed tls cert create --cli --dc %s",
			resource.ErrDenied, who, p.cfg.DC)
	case who.DC != p.cfg.DC:
		return nil, fmt.Errorf("%w: servers of %s hand on writes of operators of %s only, and %v is another's: "+
			"write at a server of the datacenter itself", resource.ErrDenied, p.cfg.DC, p.cfg.DC, who)
	}
	return metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, who.String()), nil
}

// slowPath is how many bytes per second a path takes at least: 1 Mbit/s.
const slowPath = 128 << 10

// once calls any server of another datacenter for what must not be done twice. A call whose path is found to be dead fails, after
// lastChance: nobody knows then whether it was made. One whose connection was given up for a better one may finish.
type once struct {
	c  *conns
	dc string
}

func (c *conns) once(dc string) grpc.ClientConnInterface { return once{c, dc} }

// Invoke implements grpc.ClientConnInterface. It waits for a connection, and returns when ctx ends.
func (o once) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	cc, err := o.c.to(o.dc, "")
	if err != nil {
		return err
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tested := make(chan struct{})
	go func() { // ends with cctx, or when it knows
		defer close(tested)
		if o.c.breaks(cctx, cc, args) {
			cancel()
		}
	}()
	err = cc.Invoke(cctx, method, args, reply, opts...)
	cancel()
	<-tested
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("the way to %s broke meanwhile: it may be done or not; read before you do it again", o.dc))
	}
	return err
}

// breaks waits until the path of a call of args over cc is found to be dead, or ctx ends (false). A test of the connection has to wait
// behind what is asked: until that was sent even over a slow path, no test shows anything.
func (c *conns) breaks(ctx context.Context, cc *conn, args any) bool {
	if m, ok := args.(proto.Message); ok {
		sent := time.NewTimer(time.Duration(proto.Size(m)) * time.Second / slowPath)
		defer sent.Stop()
		select {
		case <-sent.C:
		case <-ctx.Done():
			return false
		}
	}
	c.testDead(ctx, cc)
	select {
	case <-cc.life.Done():
		return !responds(ctx, cc)
	case <-ctx.Done():
		return false
	}
}

// lastChance is how long a write goes on waiting on a connection that was given up. What may be asked again is, elsewhere, after a few
// round trips; but for a write that is an answer nobody can do much with, and machines stand still for longer than that.
const lastChance = 2 * time.Second

// responds says whether a connection that was given up answers yet.
func responds(ctx context.Context, cc *conn) bool {
	ctx, cancel := context.WithTimeout(ctx, lastChance)
	defer cancel()
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
	return status.Code(err) != codes.DeadlineExceeded
}

// NewStream implements grpc.ClientConnInterface.
func (o once) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return far(o).NewStream(ctx, desc, method, opts...)
}
