// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// network is an in-memory network of members. Unlike memberlist's mock network,
// it does not block on a member that has ended, and members may be added at any
// time. The zero value is ready.
type network struct {
	mu     sync.RWMutex
	byName map[string]*transport // last transport with each name
	byAddr map[string]*transport
}

// transport is the transport of one member. It implements
// memberlist.NodeAwareTransport.
type transport struct {
	net     *network
	addr    memberlist.Address
	packets chan *memberlist.Packet
	streams chan net.Conn
}

// queueSize limits the unread packets of a member. Further packets are dropped.
const queueSize = 256

// add adds a member at a new address.
func (n *network) add(name string) *transport {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName, n.byAddr = map[string]*transport{}, map[string]*transport{}
	}
	t := &transport{
		net: n, addr: memberlist.Address{Name: name, Addr: fmt.Sprintf("127.0.0.1:%d", len(n.byAddr)+1)},
		packets: make(chan *memberlist.Packet, queueSize), streams: make(chan net.Conn, queueSize),
	}
	n.byName[name], n.byAddr[t.addr.Addr] = t, t
	return t
}

// peer returns the transport of a member by its name, or by its address if a
// has no name.
func (t *transport) peer(a memberlist.Address) (*transport, error) {
	t.net.mu.RLock()
	defer t.net.mu.RUnlock()
	to := t.net.byName[a.Name]
	if a.Name == "" {
		to = t.net.byAddr[a.Addr]
	}
	if to == nil {
		return nil, fmt.Errorf("no member %v", a)
	}
	return to, nil
}

func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := time.Now()
	to, err := t.peer(a)
	if err != nil {
		return now, err
	}
	select {
	case to.packets <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: memoryAddr(t.addr.Addr),
		Timestamp: now}:
	default:
	}
	return now, nil
}

func (t *transport) DialAddressTimeout(a memberlist.Address, _ time.Duration) (net.Conn, error) {
	to, err := t.peer(a)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	select {
	case to.streams <- far:
		return near, nil
	default:
		return nil, fmt.Errorf("stream queue of %v is full", a)
	}
}

func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (t *transport) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, d)
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	a, err := net.ResolveTCPAddr("tcp", t.addr.Addr)
	if err != nil {
		return nil, 0, err
	}
	return a.IP, a.Port, nil
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *transport) StreamCh() <-chan net.Conn           { return t.streams }
func (t *transport) Shutdown() error                     { return nil }

// IngestPacket is not called, because no other transport uses this one.
func (t *transport) IngestPacket(net.Conn, net.Addr, time.Time, bool) error {
	return errors.ErrUnsupported
}

// IngestStream is not called, because no other transport uses this one.
func (t *transport) IngestStream(net.Conn) error { return errors.ErrUnsupported }

// memoryAddr is the address of a transport.
type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }
