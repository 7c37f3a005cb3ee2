// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"context"
	"sync"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// maxNoted bounds the accesses of one Call.
const maxNoted = 16

// Call describes one call at an edge of a server. Its fields are complete when
// the call ends.
type Call struct {
	// Caller has made the request. Caller.Via is the server of another
	// datacenter that named it.
	Caller Caller
	// Forwarder is the server of this datacenter that forwarded the call. Zero:
	// the call was not forwarded by one.
	Forwarder tlsutil.Peer
	// Method is the gRPC method, or the method and the path of an HTTP request.
	Method string
	// Target names what an operator's call changes, if it is not a resource: a
	// server, a datacenter or an operation. It is never a secret.
	Target string
	// Addr is the address of the caller's connection. Empty for a request that a
	// server of another datacenter has forwarded.
	Addr string
	// Err is the error of the call, or nil.
	Err error

	mu       sync.Mutex
	noted    []resource.Access
	more     int
	index    uint64
	reserved bool
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

// Reserved reports whether a record of the call is reserved.
func (c *Call) Reserved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reserved
}

type callKey struct{}

// WithCall returns a context in which decisions and commits are noted in c.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// committed notes the index of a commit.
func (c *Call) committed(index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index = max(c.index, index)
}

// CallOf returns the Call of ctx, or nil.
func CallOf(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// note adds a to the Call of ctx.
func note(ctx context.Context, a resource.Access) {
	c := CallOf(ctx)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.noted)
	switch {
	case n > 0 && c.noted[n-1] == a: // a retry, or another decision about the same resource
	case n < maxNoted:
		c.noted = append(c.noted, a)
	default:
		c.more++
	}
}

// Recorder keeps the records of calls: see package server/audit. Its methods
// may be called concurrently.
type Recorder interface {
	// Reserve reserves a record before a call writes. It does not block. An
	// error means that the call must be refused, because its record cannot be
	// kept.
	Reserve() error
	// Record keeps the record of c. If c is reserved, has written and has no
	// error, Record may block until the record is durable. An error means that
	// it is not durable yet, so the write must not be acknowledged.
	Record(ctx context.Context, c *Call) error
}

// Reserve reserves the record of the Call of ctx, once. Both edges call it
// before a call that may write, and [Engine.Noting] before each commit. An error
// refuses the call. A reserved call must be given to Record.
func (e *Engine) Reserve(ctx context.Context) error {
	c := CallOf(ctx)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reserved {
		return nil
	}
	if e.cfg.Recorder != nil {
		if err := e.cfg.Recorder.Reserve(); err != nil {
			return err
		}
	}
	c.reserved = true
	return nil
}

// Record reports the end of call c with err to Config.Recorder. Both edges call
// it for each reserved call, and for each call that was refused because of its
// caller. An error means that the call must not be acknowledged.
func (e *Engine) Record(ctx context.Context, c *Call, err error) error {
	c.Err = err
	if e.cfg.Recorder == nil {
		return nil
	}
	return e.cfg.Recorder.Record(ctx, c)
}

// Noting returns b with commits that are noted in the Call of their context. A
// commit needs a reserved record.
func (e *Engine) Noting(b resource.Backend) resource.Backend { return noting{b, e} }

type noting struct {
	resource.Backend
	engine *Engine
}

// Commit implements resource.Backend.
func (n noting) Commit(ctx context.Context, ops ...*pb.Op) ([]*pb.Resource, error) {
	if err := n.engine.Reserve(ctx); err != nil {
		return nil, err
	}
	if c := CallOf(ctx); c != nil {
		ctx = resource.WithCommitted(ctx, c.committed)
	}
	return n.Backend.Commit(ctx, ops...)
}
