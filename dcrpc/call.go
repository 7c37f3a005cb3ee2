// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// maxAttempts is the maximum number of times that a read is sent.
	maxAttempts = 3
	// slowPath is the lowest throughput assumed for a path, in bytes per
	// second: 1 Mbit/s.
	slowPath = 128 << 10
)

// errNoResponse is a timeout, so that the class of the failure of the path is
// FailureTimeout.
var errNoResponse error = noResponse{}

type noResponse struct{}

func (noResponse) Error() string { return "no response on an open connection" }
func (noResponse) Timeout() bool { return true }

// Reader returns a connection to any server of another datacenter, for
// idempotent calls. A call is repeated over another path when its path is found
// dead, or when its connection breaks. A stream ends with codes.Canceled when
// its connection is replaced.
func (c *Client) Reader(dc string) grpc.ClientConnInterface { return reader{c, dc} }

type reader struct {
	c  *Client
	dc string
}

// Invoke implements grpc.ClientConnInterface.
func (r reader) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	for attempt := 1; ; attempt++ {
		cc, err := r.c.conn(connKey{dc: r.dc})
		if err != nil {
			return err
		}
		err = r.c.invokeRead(ctx, cc, method, args, reply, opts...)
		switch code := status.Code(err); {
		case err == nil || ctx.Err() != nil || attempt == maxAttempts:
			return err
		case code == codes.Canceled: // cc is dead, or was closed
		case code == codes.Unavailable && attempt == 1: // cc broke during the call, perhaps with its gateway
		default:
			return err
		}
	}
}

// invokeRead makes a call. The call is cancelled when cc is found dead, or when
// cc is replaced before it was connected.
func (c *Client) invokeRead(ctx context.Context, cc *conn, method string, args, reply any,
	opts ...grpc.CallOption) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(cc.retired, func() {
		if cc.dead.Load() || cc.GetState() != connectivity.Ready {
			cancel()
		}
	})()
	defer c.checkIfLate(ctx, cc, 0)()
	return cc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (r reader) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	cc, err := r.c.conn(connKey{dc: r.dc})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	detach := context.AfterFunc(cc.retired, cancel)
	stopChecks := r.c.checkIfLate(ctx, cc, 0)
	end := func() {
		cancel()
		detach()
		stopChecks()
	}
	stream, err := cc.NewStream(ctx, desc, method, opts...)
	if err != nil {
		end()
		return nil, err
	}
	context.AfterFunc(stream.Context(), end)
	return stream, nil
}

// Writer returns a connection to any server of another datacenter, for calls
// that must not be repeated. A call fails with codes.Unavailable when its
// connection breaks or is found dead. The server may have executed such a call.
// A call may finish when its connection is replaced for a better path.
func (c *Client) Writer(dc string) grpc.ClientConnInterface { return writer{reader{c, dc}} }

type writer struct{ reader }

// Invoke implements grpc.ClientConnInterface.
func (w writer) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	cc, err := w.c.conn(connKey{dc: w.dc})
	if err != nil {
		return err
	}
	// A health check is queued behind the request in the connection. The first
	// check therefore starts later, by the time in which a slow path carries
	// the request.
	var sendTime time.Duration
	if m, ok := args.(proto.Message); ok {
		sendTime = time.Duration(proto.Size(m)) * time.Second / slowPath
	}
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer w.c.checkIfLate(cctx, cc, sendTime)()
	err = cc.Invoke(cctx, method, args, reply, opts...)
	if status.Code(err) == codes.Canceled && ctx.Err() == nil {
		return status.Error(codes.Unavailable, fmt.Sprintf("the path to %s broke during the call: "+
			"the server may have executed the call; read the data before you repeat the call", w.dc))
	}
	return err
}

// checkIfLate checks the health of cc while a call that begins now has no
// response. The first check starts after sendTime and lateAfter. The interval
// doubles with each check. The checks end when ctx ends, when cc is replaced or
// when the caller calls stop.
func (c *Client) checkIfLate(ctx context.Context, cc *conn, sendTime time.Duration) (stop func()) {
	timer := time.AfterFunc(sendTime+cc.lateAfter(), func() {
		c.spawn(func() {
			for wait := 2 * cc.lateAfter(); ; wait *= 2 {
				if c.check(cc); cc.GetState() != connectivity.Ready {
					wait = cc.lateAfter()
				}
				backoff.Sleep(ctx, wait, cc.retired.Done())
				if ctx.Err() != nil || cc.retired.Err() != nil {
					return
				}
			}
		})
	})
	return func() { timer.Stop() }
}

// check checks the health of cc. The path is dead if cc does not respond within
// the probe timeout of its session. In this case check reports the dead path to
// the session and replaces cc. The session opens a standby on another path
// shortly before the probe timeout. Concurrent checks are coalesced into one. A
// connection that is being dialed is not checked, because the dialer tries all
// paths.
func (c *Client) check(cc *conn) {
	_, _, _ = cc.checks.Do("", func() (any, error) {
		s := cc.stream.Load()
		if s == nil || cc.retired.Err() != nil || cc.GetState() != connectivity.Ready {
			return nil, nil
		}
		limit := s.ProbeTimeout()
		checked := make(chan bool, 1)
		go func() { checked <- c.healthy(cc, limit) }() // received below, always
		standby := time.NewTimer(limit * 3 / 4)
		defer standby.Stop()
		settle := func(alive bool) {}
		for {
			select {
			case <-standby.C:
				settle = s.OpenStandby()
			case alive := <-checked:
				if !alive && cc.retired.Err() == nil && c.ctx.Err() == nil {
					s.MarkDead(errNoResponse)
					cc.dead.Store(true)
					c.replace(cc, drainTimeout)
				}
				settle(alive)
				return nil, nil
			}
		}
	})
}

// healthy reports whether cc responds to a health check within limit. A
// response with an error counts as well.
func (c *Client) healthy(cc *conn, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{})
	return status.Code(err) != codes.DeadlineExceeded
}

// lateAfter returns the time after which a response is late: five eighths of
// the probe timeout. The probe timeout is two round trips.
func (cc *conn) lateAfter() time.Duration {
	if s := cc.stream.Load(); s != nil {
		return s.ProbeTimeout() * 5 / 8
	}
	return wanfed.MaxProbeTimeout * 5 / 8 // cc is being dialed
}
