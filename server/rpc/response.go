// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"
	"errors"
	"net"
	"runtime"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

// A call whose response may be large holds a slot of Edge.responses until gRPC
// has sent the response. For gRPC a unary call has ended when its response is
// queued, even if the peer never reads. Without the slot, a peer that makes
// calls and never reads could exhaust the memory.
//
// gRPC frees the buffer of a response when it has sent the response. In two
// cases gRPC never frees the buffer. If the connection was closed, the context
// connInfo.closed releases the slot. If the stream ended just before the send,
// the garbage collector releases the slot.

// responseSlot waits for the slot of a call whose response may be large. It
// returns nil if the call needs no slot.
func (e *Edge) responseSlot(ctx context.Context, c call) (*limit.Slot, error) {
	p := c.caller.Peer
	if !c.rule.large || e.exempt(p) {
		return nil, nil
	}
	if c.caller.Via != (tlsutil.Peer{}) {
		p = c.caller.Via // it could name any number of callers
	}
	return e.responses.Acquire(ctx, p)
}

// limitedResponse is a response that holds a slot until it is sent. It
// implements mem.BufferPool, because gRPC calls Put when it frees the encoded
// response.
type limitedResponse struct {
	message any
	encoded mem.Buffer
	hold    hold
}

// hold releases a slot once its connection is closed, until done is called.
type hold struct {
	closed context.Context // ends with the connection
	slot   *limit.Slot
	detach func() bool // stops the release when closed ends
}

func (h *hold) attach() { h.detach = context.AfterFunc(h.closed, h.slot.Release) }

func (h hold) done() {
	h.detach()
	h.slot.Release()
}

func newLimitedResponse(ctx context.Context, message any, slot *limit.Slot) *limitedResponse {
	closed := context.Background()
	if conn := connInfoOf(ctx); conn != nil {
		closed = conn.closed
	}
	return &limitedResponse{message: message, hold: hold{closed: closed, slot: slot}}
}

// Get implements mem.BufferPool. gRPC does not call it.
func (r *limitedResponse) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put implements mem.BufferPool. gRPC calls it once the response is sent.
func (r *limitedResponse) Put(*[]byte) {
	r.hold.done()
	r.encoded.Free()
}

// responseCodec encodes responses, and releases the slots of small ones.
type responseCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c responseCodec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*limitedResponse)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	all, err := c.CodecV2.Marshal(r.message)
	if err != nil || all.Len() <= SmallResponse {
		r.hold.slot.Release()
		return all, err
	}
	r.encoded = all.MaterializeToBuffer(mem.DefaultBufferPool())
	all.Free()
	r.message = nil
	r.hold.attach()
	runtime.AddCleanup(r, hold.done, r.hold)
	data := r.encoded.ReadOnlyData()
	return mem.BufferSlice{mem.NewBuffer(&data, r)}, nil
}

// connCredentials are the credentials of connections with a complete TLS
// handshake. They add a connInfo to each connection.
type connCredentials struct {
	credentials.TransportCredentials
	domain string // of the names in certificates
}

// ServerHandshake implements credentials.TransportCredentials. It fails if the
// certificate of the peer names no peer.
func (c connCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	tlsInfo := info.(credentials.TLSInfo)
	if len(tlsInfo.State.PeerCertificates) == 0 {
		return nil, nil, errors.New("connection without a verified certificate")
	}
	holder, err := tlsutil.PeerFromCert(tlsInfo.State.PeerCertificates[0], c.domain)
	if err != nil {
		return nil, nil, err
	}
	closed, end := context.WithCancel(context.Background())
	return closingConn{conn, end}, &connInfo{tlsInfo, holder, closed}, nil
}

// Clone implements credentials.TransportCredentials.
func (c connCredentials) Clone() credentials.TransportCredentials {
	return connCredentials{c.TransportCredentials.Clone(), c.domain}
}

// connInfo describes the connection of a call.
type connInfo struct {
	credentials.TLSInfo
	holder tlsutil.Peer    // the peer that the certificate names
	closed context.Context // ends when the connection is closed
}

// connInfoOf returns the connection of a call, or nil for a call without a
// connection.
func connInfoOf(ctx context.Context) *connInfo {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, _ := p.AuthInfo.(*connInfo)
	return info
}

type closingConn struct {
	net.Conn
	end context.CancelFunc // ends connInfo.closed
}

// Close implements net.Conn.
func (c closingConn) Close() error {
	c.end()
	return c.Conn.Close()
}
