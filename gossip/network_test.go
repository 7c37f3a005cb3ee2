// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// network replaces the tunnel, because these tests are about serf and not about
// transports. Unlike memberlist's mock network, it never waits for a member that
// has ended, and members may be added at any time. The zero value is ready.
type network struct {
	mu     sync.RWMutex
	byName map[string]*wire // the newest one of each name
	byAddr map[string]*wire
}

// wire is the transport of one member.
type wire struct {
	net     *network
	addr    memberlist.Address
	packets chan *memberlist.Packet
	streams chan net.Conn
}

// queueSize limits the unread packets of a member. Further packets are dropped.
const queueSize = 256

func (n *network) transport(name string) *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName, n.byAddr = map[string]*wire{}, map[string]*wire{}
	}
	w := &wire{
		net: n, addr: memberlist.Address{Name: name, Addr: fmt.Sprintf("127.0.0.1:%d", len(n.byAddr)+1)},
		packets: make(chan *memberlist.Packet, queueSize), streams: make(chan net.Conn, queueSize),
	}
	n.byName[name], n.byAddr[w.addr.Addr] = w, w
	return w
}

func (w *wire) peer(a memberlist.Address) (*wire, error) {
	w.net.mu.RLock()
	defer w.net.mu.RUnlock()
	to := w.net.byName[a.Name]
	if a.Name == "" {
		to = w.net.byAddr[a.Addr]
	}
	if to == nil {
		return nil, fmt.Errorf("no member %v", a)
	}
	return to, nil
}

func (w *wire) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := time.Now()
	to, err := w.peer(a)
	if err != nil {
		return now, err
	}
	select {
	case to.packets <- &memberlist.Packet{Buf: append([]byte(nil), b...), From: wireAddr(w.addr.Addr), Timestamp: now}:
	default:
	}
	return now, nil
}

func (w *wire) DialAddressTimeout(a memberlist.Address, _ time.Duration) (net.Conn, error) {
	to, err := w.peer(a)
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

func (w *wire) WriteTo(b []byte, addr string) (time.Time, error) {
	return w.WriteToAddress(b, memberlist.Address{Addr: addr})
}

func (w *wire) DialTimeout(addr string, d time.Duration) (net.Conn, error) {
	return w.DialAddressTimeout(memberlist.Address{Addr: addr}, d)
}

func (w *wire) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	a, err := net.ResolveTCPAddr("tcp", w.addr.Addr)
	if err != nil {
		return nil, 0, err
	}
	return a.IP, a.Port, nil
}

func (w *wire) PacketCh() <-chan *memberlist.Packet { return w.packets }
func (w *wire) StreamCh() <-chan net.Conn           { return w.streams }
func (w *wire) Shutdown() error                     { return nil }

// IngestPacket is never called: there is no transport below this one.
func (w *wire) IngestPacket(net.Conn, net.Addr, time.Time, bool) error { return errNoLowerTransport }

// IngestStream is never called either.
func (w *wire) IngestStream(net.Conn) error { return errNoLowerTransport }

var errNoLowerTransport = fmt.Errorf("no lower transport")

type wireAddr string

func (wireAddr) Network() string  { return "memory" }
func (a wireAddr) String() string { return string(a) }
