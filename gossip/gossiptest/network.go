// SPDX-License-Identifier: MPL-2.0

package gossiptest

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Network is an in-memory network of members. Unlike memberlist's mock network,
// it does not block on a member that has ended, and members may be added at any
// time. The zero value is ready. Any goroutine may call its methods.
type Network struct {
	mu     sync.RWMutex
	byName map[string]*Transport // last transport with each name
	byAddr map[string]*Transport
	cut    map[string]bool // by name
	relays map[string]string
}

// Transport is the transport of one member. It implements
// memberlist.NodeAwareTransport.
type Transport struct {
	// Addr is the name and the address of the member.
	Addr memberlist.Address

	net     *Network
	packets chan *memberlist.Packet
	streams chan net.Conn
}

// queueSize limits the unread packets of a member. Further packets are dropped.
const queueSize = 256

// Add adds a member at a new address.
func (n *Network) Add(name string) *Transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName, n.byAddr, n.cut = map[string]*Transport{}, map[string]*Transport{}, map[string]bool{}
	}
	t := &Transport{
		net: n, Addr: memberlist.Address{Name: name, Addr: fmt.Sprintf("127.0.0.1:%d", len(n.byAddr)+1)},
		packets: make(chan *memberlist.Packet, queueSize), streams: make(chan net.Conn, queueSize),
	}
	n.byName[name], n.byAddr[t.Addr.Addr] = t, t
	return t
}

// Transport returns the last transport with a name, or nil.
func (n *Network) Transport(name string) *Transport {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.byName[name]
}

// Cut cuts a member off from all others, or connects it again. Streams that are
// open stay open.
func (n *Network) Cut(name string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[name] = cut
}

// Relay makes packets to a member arrive as packets of relay, as if that server
// of an earlier version relayed them.
func (n *Network) Relay(name, relay string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.relays == nil {
		n.relays = map[string]string{}
	}
	n.relays[name] = relay
}

// sender returns the name of the peer from which a packet of from arrives at to.
func (n *Network) sender(from, to string) Addr {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if relay, ok := n.relays[to]; ok {
		return Addr(relay)
	}
	return Addr(from)
}

// Deliver delivers a packet from a peer that need not be a member. It blocks
// while the member has many unread packets.
func (t *Transport) Deliver(packet []byte, from string) {
	t.packets <- &memberlist.Packet{Buf: packet, From: Addr(from), Timestamp: time.Now()}
}

// peer returns the transport of a member by its name, or by its address if a
// has no name.
func (t *Transport) peer(a memberlist.Address) (*Transport, error) {
	t.net.mu.RLock()
	defer t.net.mu.RUnlock()
	to := t.net.byName[a.Name]
	if a.Name == "" {
		to = t.net.byAddr[a.Addr]
	}
	if to == nil {
		return nil, fmt.Errorf("no member %v", a)
	}
	if t.net.cut[t.Addr.Name] || t.net.cut[to.Addr.Name] {
		return nil, fmt.Errorf("%w: no path to member %v", errCut, a)
	}
	return to, nil
}

var errCut = errors.New("cut off")

// WriteToAddress implements memberlist.NodeAwareTransport. It drops the packet
// if there is no path to the member, or if the member has many unread packets.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := time.Now()
	to, err := t.peer(a)
	if errors.Is(err, errCut) {
		return now, nil
	}
	if err != nil {
		return now, err
	}
	select {
	case to.packets <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: t.net.sender(t.Addr.Name, to.Addr.Name),
		Timestamp: now}:
	default:
	}
	return now, nil
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *Transport) DialAddressTimeout(a memberlist.Address, _ time.Duration) (net.Conn, error) {
	to, err := t.peer(a)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	select {
	case to.streams <- peerConn{far, t.Addr.Name}:
		return peerConn{near, to.Addr.Name}, nil
	default:
		return nil, fmt.Errorf("stream queue of %v is full", a)
	}
}

// peerConn is a stream whose RemoteAddr is the name of the peer.
type peerConn struct {
	net.Conn
	peer string
}

func (c peerConn) RemoteAddr() net.Addr { return Addr(c.peer) }

// WriteTo implements memberlist.Transport.
func (t *Transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// DialTimeout implements memberlist.Transport.
func (t *Transport) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, d)
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	a, err := net.ResolveTCPAddr("tcp", t.Addr.Addr)
	if err != nil {
		return nil, 0, err
	}
	return a.IP, a.Port, nil
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown does nothing.
func (t *Transport) Shutdown() error { return nil }

// IngestPacket is not called, because no other transport uses this one.
func (t *Transport) IngestPacket(net.Conn, net.Addr, time.Time, bool) error {
	return errors.ErrUnsupported
}

// IngestStream is not called, because no other transport uses this one.
func (t *Transport) IngestStream(net.Conn) error { return errors.ErrUnsupported }

// Addr is the address of a peer.
type Addr string

// Network implements net.Addr.
func (Addr) Network() string { return "memory" }

// String implements net.Addr.
func (a Addr) String() string { return string(a) }
