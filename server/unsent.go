// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"net"
	"runtime"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/tlsutil"
)

// For gRPC a call has ended when its answer is queued, however little its peer reads. So who makes calls and reads nothing would have as
// many answers here as it likes: those that may be large are made in turns, and a large one keeps its turn until gRPC lets go of it, or
// its connection is closed: then gRPC forgets what was not sent. It also forgets what comes for a stream that has just ended; that turn
// ends with the memory.

// turn begins the turn of a call whose answer may be large, unless the caller has no bound (nil).
func (c *calls) turn(ctx context.Context, r rule) (*httpapi.Turn, error) {
	if p, err := peerFrom(ctx); !r.large || err != nil || p.Role == tlsutil.RoleServer && p.DC == c.dc {
		return nil, nil
	}
	return c.turns.of(ctx).Begin(ctx)
}

// untilSent returns the answer of a call for gRPC: one that ends the turn when it is sent.
func untilSent(ctx context.Context, answer any, turn *httpapi.Turn) any {
	u := &unsent{answer: answer, turn: turn, closed: context.Background()}
	if gp, ok := grpcpeer.FromContext(ctx); ok {
		if addr, ok := gp.Addr.(closingAddr); ok {
			u.closed = addr.closed
		}
	}
	return u
}

// unsent is an answer with its turn, for unsentCodec. As a mem.BufferPool it is told when gRPC lets go of what was encoded.
type unsent struct {
	answer  any
	turn    *httpapi.Turn
	closed  context.Context // ends with the connection
	forget  func() bool     // what is to be done then
	encoded mem.BufferSlice
}

// Get implements mem.BufferPool. Nobody asks.
func (u *unsent) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put implements mem.BufferPool.
func (u *unsent) Put(*[]byte) {
	held{u.forget, u.turn}.end()
	u.encoded.Free()
}

// held is a turn that its connection's end gives back too, unless that is to be forgotten.
type held struct {
	forget func() bool
	turn   *httpapi.Turn
}

func (h held) end() {
	h.forget()
	h.turn.End()
}

// unsentCodec ends the turn of an answer: of a small one once that is encoded.
type unsentCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c unsentCodec) Marshal(v any) (mem.BufferSlice, error) {
	u, ok := v.(*unsent)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	all, err := c.CodecV2.Marshal(u.answer)
	if err != nil || all.Len() <= smallAnswer {
		u.turn.End()
		return all, err
	}
	one := all.MaterializeToBuffer(mem.DefaultBufferPool())
	all.Free()
	u.answer, u.encoded = nil, mem.BufferSlice{one}
	u.forget = context.AfterFunc(u.closed, u.turn.End)
	runtime.AddCleanup(u, held.end, held{u.forget, u.turn})
	data := one.ReadOnlyData()
	return mem.BufferSlice{mem.NewBuffer(&data, u)}, nil
}

// closings is a listener for gRPC whose connections have a closingAddr.
type closings struct{ net.Listener }

// Accept implements net.Listener.
func (l closings) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if t, ok := c.(tlsConn); ok {
		closed, end := context.WithCancel(context.Background())
		return closingConn{t, closingAddr{c.RemoteAddr(), closed}, end}, nil
	}
	return c, err
}

type closingConn struct {
	tlsConn
	addr closingAddr
	end  context.CancelFunc
}

// closingAddr is the address of a peer, by which its calls know when their connection is closed.
type closingAddr struct {
	net.Addr
	closed context.Context
}

func (c closingConn) RemoteAddr() net.Addr { return c.addr }

func (c closingConn) Close() error {
	c.end()
	return c.tlsConn.Close()
}

// tlsConn is a connection whose peer is authenticated: *tls.Conn, *wanfed.CallConn.
type tlsConn interface {
	net.Conn
	ConnectionState() tls.ConnectionState
}
