// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/resource"
)

const (
	// leaderHold is how long a call waits for the datacenter to have a leader, as calls by gRPC do: longer than an election takes.
	leaderHold = 7 * time.Second
	// leaderLook is how often it looks.
	leaderLook = 100 * time.Millisecond
)

// hold makes a call, again and again while there is no leader: then nothing was done.
func hold[In, Out any](ctx context.Context, call func(context.Context, In, ...grpc.CallOption) (Out, error), in In, opts ...grpc.CallOption) (Out, error) {
	for end := time.Now().Add(leaderHold); ; {
		out, err := call(ctx, in, opts...)
		if err == nil || !errors.Is(resource.FromStatus(err), resource.ErrNotLeader) || !time.Now().Before(end) {
			return out, err
		}
		pause := time.NewTimer(leaderLook)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return out, err
		}
	}
}
