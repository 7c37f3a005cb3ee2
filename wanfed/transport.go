// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// Transport is one pool's view of a Tunnel: what memberlist's (and serf's) Config.Transport wants. See Tunnel.Transport.
//
// Errors about an unreachable peer are *net.OpError, unwrapped, with Op dial or write, because memberlist takes only those
// as a sign that the peer, not this machine, is at fault (failedRemote in its state.go): else it would keep an unreachable
// member alive.
type Transport struct {
	t    *Tunnel
	pool Pool

	born    time.Time
	sends   sendCache
	packets chan *memberlist.Packet
	streams chan net.Conn

	// ctx ends with Shutdown. It is stored, against the rule, because memberlist's interface passes none.
	ctx    context.Context
	cancel context.CancelFunc
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

const (
	// packetBacklog is how many received packets may wait for memberlist, which takes them in one goroutine that never
	// waits for the network: a burst, not a queue.
	packetBacklog = 4096
	// streamBacklog is how many accepted streams may wait for memberlist, which starts a goroutine for each.
	streamBacklog = 32
)

func newTransport(t *Tunnel, p Pool) *Transport {
	tr := &Transport{
		t: t, pool: p, born: time.Now(), sends: sendCache{seed: maphash.MakeSeed()},
		packets: make(chan *memberlist.Packet, packetBacklog), streams: make(chan net.Conn, streamBacklog),
	}
	tr.ctx, tr.cancel = context.WithCancel(context.Background())
	return tr
}

// FinalAdvertiseAddr returns the tunnel's Advertise address, whatever memberlist was configured with.
func (tr *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return tr.t.addr.Addr().AsSlice(), int(tr.t.addr.Port()), nil
}

// WriteTo is WriteToAddress without a name.
func (tr *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return tr.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress queues a copy of b and returns at once, always. It fails only for a packet that is too large (more than
// MaxPacket bytes), a name that no peer can have, or after Shutdown: that nobody is reachable shows by the missing answer.
func (tr *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := tr.now()
	if tr.isShut() {
		return time.Time{}, net.ErrClosed
	}
	if len(b) == 0 || len(b) > MaxPacket {
		return time.Time{}, fmt.Errorf("send to %s: a packet of %d bytes, not 1 to %d", a.Name, len(b), MaxPacket)
	}
	if tr.sends.push(tr.t, tr.pool, a.Name, a.Addr, b, now) {
		return now, nil
	}
	changes := tr.t.protocols.Load()
	to, err := parseTarget(tr.pool, a.Name, a.Addr, tr.t.own.DC)
	var l *link
	if err == nil {
		l, err = tr.t.send(tr.pool, to, a.Addr, b, now)
	}
	if err != nil {
		return time.Time{}, opError("write", a, err)
	}
	if l != nil && a.Name != "" {
		tr.sends.place(a.Name).Store(&sendRoute{a.Name, to.node, l, changes})
	}
	return now, nil
}

// PacketCh has the packets received for the pool. When memberlist takes them too slowly, they are dropped and counted.
func (tr *Transport) PacketCh() <-chan *memberlist.Packet { return tr.packets }

// StreamCh has the streams opened by others.
func (tr *Transport) StreamCh() <-chan net.Conn { return tr.streams }

// DialTimeout is DialAddressTimeout without a name.
func (tr *Transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return tr.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to a member. It returns within timeout, at once after Shutdown, and only when the
// member itself has accepted the stream.
func (tr *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(tr.ctx, timeout)
	defer cancel()
	to, err := parseTarget(tr.pool, a.Name, a.Addr, tr.t.own.DC)
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

// Shutdown ends the pool's part in the tunnel: calls that wait return, and what still arrives for the pool is refused or
// dropped. The tunnel and other pools go on. Streams that were given out stay open; who has them closes them.
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

// now is time.Now for half its price: the wall clock is not asked, since memberlist only compares what it gets.
func (tr *Transport) now() time.Time { return tr.born.Add(time.Since(tr.born)) }

// receive gives memberlist a packet; false means that it was dropped because too many wait. Who takes it owns it.
func (tr *Transport) receive(p *memberlist.Packet) bool {
	select {
	case tr.packets <- p:
		return true
	default:
		return false
	}
}

// hasRoom says whether accept will probably not wait.
func (tr *Transport) hasRoom() bool { return len(tr.streams) < cap(tr.streams) }

// accept gives memberlist a stream, or closes it.
func (tr *Transport) accept(ctx context.Context, c net.Conn) {
	t := time.NewTimer(tr.t.tm.open)
	defer t.Stop()
	select {
	case tr.streams <- c:
		if tr.isShut() {
			_ = tr.Shutdown() // it may have come too late to be drained
		}
		return
	case <-tr.ctx.Done():
	case <-ctx.Done():
	case <-t.C:
	}
	c.Close()
}

// opError is the form of error in which memberlist sees a remote failure.
func opError(op string, a memberlist.Address, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: nameAddr(a.String()), Err: err}
}

// timeoutError says that the time the caller gave was not enough.
type timeoutError struct {
	after time.Duration
	err   error
}

func (e *timeoutError) Error() string { return fmt.Sprintf("no answer within %v: %v", e.after, e.err) }
func (e *timeoutError) Unwrap() error { return e.err }
func (e *timeoutError) Timeout() bool { return true }
