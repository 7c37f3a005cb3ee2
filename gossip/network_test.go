// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// network stands for the tunnel: these tests are about serf and not about transports. Like the tunnel, and unlike memberlist's own
// fake, it never waits for a member that has ended, and members may come while others are running. The zero value is ready.
type network struct {
	mu     sync.RWMutex
	byName map[string]*wire // the last one of the name
	byAddr map[string]*wire
}

// wire is one member's transport.
type wire struct {
	net     *network
	addr    memberlist.Address
	packets chan *memberlist.Packet
	streams chan net.Conn
}

// room is how much a member may leave unread; what comes then is lost.
const room = 256

func (n *network) transport(name string) *wire {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.byName == nil {
		n.byName, n.byAddr = map[string]*wire{}, map[string]*wire{}
	}
	w := &wire{
		net: n, addr: memberlist.Address{Name: name, Addr: fmt.Sprintf("127.0.0.1:%d", len(n.byAddr)+1)},
		packets: make(chan *memberlist.Packet, room), streams: make(chan net.Conn, room),
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
		return nil, fmt.Errorf("nobody is called %v", a)
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
		return nil, fmt.Errorf("%v takes no streams", a)
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

// Ingest methods are for transports below this one, which there are not.
func (w *wire) IngestPacket(net.Conn, net.Addr, time.Time, bool) error { return errNothingBelow }
func (w *wire) IngestStream(net.Conn) error                            { return errNothingBelow }

var errNothingBelow = fmt.Errorf("nothing is below this transport")

type wireAddr string

func (wireAddr) Network() string  { return "memory" }
func (a wireAddr) String() string { return string(a) }
