// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"context"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// maxNoted bounds the accesses of one Call.
const maxNoted = 16

// Call describes one call at an edge of a server. Its fields are complete when
// the call ends.
type Call struct {
	// Caller has made the request. Caller.Via is the server that named it.
	Caller Caller
	// Method is the gRPC method, or the method and the path of an HTTP request.
	Method string
	// Addr is the address of the other end of the connection. Empty for a
	// request that a server of another datacenter has forwarded.
	Addr string
	// Err is the error of the call, or nil.
	Err error

	mu    sync.Mutex
	noted []resource.Access
	more  int
	index uint64
}

// Accesses returns the first resources that the call has used or has wanted to
// use, in order, and the number of further ones.
func (c *Call) Accesses() (first []resource.Access, more int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.noted, c.more
}

// Index returns the index of the last write of the call, or 0.
func (c *Call) Index() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index
}

type callKey struct{}

// WithCall returns a context in which decisions and commits are noted in c.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// note adds a to the Call of ctx.
func note(ctx context.Context, a resource.Access) {
	c, _ := ctx.Value(callKey{}).(*Call)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.noted) < maxNoted {
		c.noted = append(c.noted, a)
	} else {
		c.more++
	}
}

// Record reports the end of call c with err to Config.Record. Both edges call it
// for each write, and for each call that was refused because of its caller.
func (e *Engine) Record(ctx context.Context, c *Call, err error) {
	c.Err = err
	if e.cfg.Record != nil {
		e.cfg.Record(ctx, c)
	}
}

// Noting returns b with commits that are noted in the Call of their context.
func Noting(b resource.Backend) resource.Backend { return noting{b} }

type noting struct{ resource.Backend }

// Commit implements resource.Backend.
func (n noting) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	stored, err := n.Backend.Commit(ctx, ops...)
	if c, _ := ctx.Value(callKey{}).(*Call); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, r := range stored {
			c.index = max(c.index, r.GetModifyIndex())
		}
	}
	return stored, err
}
