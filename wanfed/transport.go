// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// Transport carries one pool over a Tunnel. It is for the field Transport of
// the configuration of memberlist and serf. See Tunnel.Transport.
//
// An error about an unreachable peer is an unwrapped *net.OpError with Op dial
// or write. memberlist attributes only such errors to the peer (failedRemote in
// its state.go). After other errors memberlist keeps an unreachable member
// alive.
type Transport struct {
	t    *Tunnel
	pool Pool

	packets chan *memberlist.Packet
	streams chan net.Conn

	// ctx ends with Shutdown. It is stored because memberlist's interface has
	// no context.
	ctx    context.Context
	cancel context.CancelFunc
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

const (
	packetBacklog = 1024 // received packets that memberlist has not read yet; at most 8 MiB
	streamBacklog = 32   // accepted streams that memberlist has not read yet
)

func newTransport(t *Tunnel, p Pool) *Transport {
	tr := &Transport{
		t: t, pool: p,
		packets: make(chan *memberlist.Packet, packetBacklog), streams: make(chan net.Conn, streamBacklog),
	}
	tr.ctx, tr.cancel = context.WithCancel(context.Background())
	return tr
}

// FinalAdvertiseAddr returns TunnelConfig.Advertise. It ignores the address in
// memberlist's configuration.
func (tr *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return tr.t.addr.Addr().AsSlice(), int(tr.t.addr.Port()), nil
}

// WriteTo calls WriteToAddress without a name.
func (tr *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return tr.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress queues a copy of b for the server a.Name and returns at once.
// It returns an error if the packet is empty or has more than MaxPacket bytes,
// if the name is invalid, and after Shutdown or the end of Tunnel.Run. It
// returns no error if the peer is unreachable: the packet is then lost, as in
// UDP.
func (tr *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := time.Now()
	if tr.isShut() {
		return time.Time{}, net.ErrClosed
	}
	if len(b) == 0 || len(b) > MaxPacket {
		return time.Time{}, fmt.Errorf("send to %s: a packet of %d bytes, not 1 to %d", a.Name, len(b), MaxPacket)
	}
	to, err := parseTarget(tr.pool, a.Name, a.Addr, tr.t.self.DC)
	if err == nil {
		err = tr.t.send(tr.pool, to, a.Addr, b, now)
	}
	if err != nil {
		return time.Time{}, opError("write", a, err)
	}
	return now, nil
}

// PacketCh returns the channel of the packets for the pool. If memberlist reads
// the channel too slowly, packets are dropped and counted.
func (tr *Transport) PacketCh() <-chan *memberlist.Packet { return tr.packets }

// StreamCh returns the channel of the streams that other members opened.
func (tr *Transport) StreamCh() <-chan net.Conn { return tr.streams }

// DialTimeout calls DialAddressTimeout without a name.
func (tr *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return tr.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to a member. It succeeds only after the
// member itself has accepted the stream. It returns within timeout, and at once
// after Shutdown.
func (tr *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(tr.ctx, timeout)
	defer cancel()
	to, err := parseTarget(tr.pool, a.Name, a.Addr, tr.t.self.DC)
	if err != nil {
		return nil, opError("dial", a, err)
	}
	c, err := tr.t.openStream(ctx, tr.pool, to, a.Addr, tr.t.name())
	switch {
	case err == nil:
		return c, nil
	case tr.isShut():
		err = net.ErrClosed
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		err = &timeoutError{timeout, err}
	}
	return nil, opError("dial", a, err)
}

// Shutdown ends the transport. Blocked calls return. Packets and streams that
// arrive later are dropped or refused. The tunnel and other pools continue. A
// stream that memberlist has received stays open until memberlist closes it.
func (tr *Transport) Shutdown() error {
	tr.cancel()
	for {
		select {
		case c := <-tr.streams:
			c.Close()
		default:
			return nil
		}
	}
}

func (tr *Transport) isShut() bool { return tr.ctx.Err() != nil }

// receive passes a packet to memberlist, which then owns the packet. It returns
// false if the backlog is full.
func (tr *Transport) receive(p *memberlist.Packet) bool {
	select {
	case tr.packets <- p:
		return true
	default:
		return false
	}
}

// canAccept reports whether the backlog of streams has a free slot.
func (tr *Transport) canAccept() bool { return len(tr.streams) < cap(tr.streams) }

// accept passes a stream to memberlist. It closes the stream if memberlist does
// not read the stream within openTimeout, or if the transport or ctx ends.
func (tr *Transport) accept(ctx context.Context, c net.Conn) {
	select {
	case tr.streams <- c:
		if tr.isShut() {
			_ = tr.Shutdown() // the first Shutdown may have missed this stream
		}
		return
	case <-tr.ctx.Done():
	case <-ctx.Done():
	case <-time.After(tr.t.limits.openTimeout):
	}
	c.Close()
}

// opError wraps err in the form that memberlist recognizes as a remote failure.
func opError(op string, a memberlist.Address, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: nameAddr(a.String()), Err: err}
}

// timeoutError reports that the caller's timeout passed. net.OpError.Timeout
// uses its method Timeout and does not unwrap errors.
type timeoutError struct {
	after time.Duration
	err   error
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("no response within %v: %v", e.after, e.err)
}
func (e *timeoutError) Unwrap() error { return e.err }
func (e *timeoutError) Timeout() bool { return true }
