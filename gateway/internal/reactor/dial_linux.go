// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"container/heap"
	"context"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/proxyproto"
)

// Bounds of worker.freeDials: the number of dials, and the bytes in the buffer
// of each.
const (
	maxFreeDials = 256
	maxKeptHello = 4 << 10
)

// dial is the selection of an upstream for one connection, with the sockets
// that are connecting. Times are durations since the start of the engine.
type dial struct {
	upstream.Selection
	conn      *conn
	hello     upstream.Hello
	race      bool
	attempts  []*attempt
	first     attempt       // memory for one attempt, because most dials have no more
	firstUsed bool          // first is or was in attempts
	next      time.Duration // when the next address is tried
	deadline  time.Duration // when the dial fails
	over      bool

	due   time.Duration // when expire is called
	index int           // in timers, plus one; 0: not in timers
}

// attempt is the connection to one address of a dial.
type attempt struct {
	dial     *dial
	n        int // number of the address in the Selection
	fd       int32
	state    attemptState
	hungUp   bool               // the peer has ended its direction
	hello    []byte             // for this address: dial.hello or its end
	sent     int                // bytes of hello
	answer   []byte             // the received part of the first TLS record
	deadline time.Duration      // for the TCP connection
	cancel   context.CancelFunc // nil: no goroutine resolves the name
}

type attemptState uint8

const (
	resolving attemptState = iota // a goroutine resolves the name and connects
	dialing                       // the socket is connecting
	awaiting                      // the socket is connected; the ClientHello or its answer is pending
)

// dial starts the selection of an upstream for c. It does not keep req.Hello.
func (w *worker) dial(c *conn, req Request) {
	var d *dial
	if n := len(w.freeDials); n > 0 {
		d, w.freeDials = w.freeDials[n-1], w.freeDials[:n-1]
	} else {
		d = &dial{}
	}
	d.conn, d.race, d.over, d.deadline = c, req.Race, false, w.now+2*w.engine.Dialer.Timeout
	if req.ProxyHeader {
		local, _ := sysAddrs(c.client.fd)
		d.hello.Bytes = proxyproto.Append(d.hello.Bytes, req.Source, local)
	}
	d.hello.Header, d.hello.HeaderTo = len(d.hello.Bytes), req.ProxyTo
	d.hello.Bytes = append(d.hello.Bytes, req.Hello...)
	c.dial = d
	probe := d.Init(w.engine.Dialer, req.Addrs, req.Start, c.session.NewUpstreams, w.time())
	if err := c.session.HoldHello(len(d.hello.Bytes)); err != nil {
		c.fail(w, err)
		return
	}
	if probe != "" {
		var hello []byte
		if d.race {
			hello = slices.Clone(d.hello.For(probe))
		}
		w.engine.Dialer.Probe(w.engine.serving, probe, hello)
	}
	d.advance(w)
}

// advance tries the next address, if one is left, and sets the timer. The dial
// may be over when advance returns.
func (d *dial) advance(w *worker) {
	for !d.Over() {
		n, wait, ok := d.Next(w.time())
		d.next = w.now + wait
		if ok {
			err := d.start(w, n)
			if d.over {
				return
			}
			if err != nil {
				d.Failed(n, upstream.DialError(d.Addr(n), err), w.time())
				continue
			}
		} else if d.Over() {
			break
		}
		d.schedule(w)
		return
	}
	d.conn.fail(w, d.Err())
}

// schedule sets the timer to the next time at which an action is due.
func (d *dial) schedule(w *worker) {
	at := min(d.next, d.deadline)
	for _, a := range d.attempts {
		if a.state != awaiting {
			at = min(at, a.deadline)
		}
	}
	w.timers.set(d, at)
}

// start begins an attempt to connect to address n. It sends the ClientHello at
// once if the connection is established at once, as on the same machine. The
// dial may be over when start returns.
func (d *dial) start(w *worker, n int) error {
	addr, err := netip.ParseAddrPort(d.Addr(n))
	byName := err != nil || addr.Addr().Zone() != ""
	a := &d.first
	if d.firstUsed || byName { // a message of resolve may arrive after d is used again
		a = &attempt{}
	} else {
		d.firstUsed = true
	}
	*a = attempt{dial: d, n: n, fd: -1, hello: d.hello.For(d.Addr(n)), deadline: w.now + w.engine.Dialer.Timeout}
	if byName {
		d.attempts = append(d.attempts, a)
		a.resolve(w)
		return nil
	}
	fd, errno := sysConnect(addr)
	if errno != 0 {
		return errno
	}
	a.fd, a.state = fd, dialing
	events := uint32(allEvents)
	if !w.engine.Dialer.OwnPort(addr.Port()) { // otherwise event first checks the peer
		errno := a.sendHello()
		if errno != 0 && errno != unix.EAGAIN {
			sysClose(fd)
			return errno
		}
		if a.state == awaiting && a.sent == len(a.hello) {
			events = inEvents
		}
	}
	if err := w.register(fd, a, events); err != nil {
		sysClose(fd)
		return err
	}
	d.attempts = append(d.attempts, a)
	if a.state == awaiting && !d.race {
		a.win(w, nil, false)
	}
	return nil
}

// expire runs the actions that are due.
func (d *dial) expire(w *worker) {
	if w.now >= d.deadline {
		d.Abort(context.DeadlineExceeded, w.time())
		d.conn.fail(w, d.Err())
		return
	}
	for i := len(d.attempts) - 1; i >= 0; i = min(i, len(d.attempts)) - 1 {
		if a := d.attempts[i]; a.state != awaiting && w.now >= a.deadline {
			if a.fail(w, a.dialError(context.DeadlineExceeded)); d.over {
				return
			}
		}
	}
	if w.now < d.next {
		d.schedule(w)
		return
	}
	if d.race && d.conn.client.hungUp {
		d.conn.fail(w, upstream.ErrClientGone)
		return
	}
	d.AddNew()
	d.advance(w)
}

// release ends the dial and closes its sockets.
func (d *dial) release(w *worker) {
	d.over, d.conn.dial = true, nil
	w.timers.stop(d)
	d.Cancel()
	for _, a := range d.attempts {
		a.close(w)
	}
	clear(d.attempts)
	d.attempts, d.firstUsed = d.attempts[:0], false
	d.hello = upstream.Hello{Bytes: d.hello.Bytes[:0]}
	if cap(d.hello.Bytes) > maxKeptHello {
		d.hello.Bytes = nil
	}
	if len(w.freeDials) < maxFreeDials {
		w.freeDials = append(w.freeDials, d)
	}
}

// dialError adds the address to an error of the attempt.
func (a *attempt) dialError(err error) error { return upstream.DialError(a.dial.Addr(a.n), err) }

// resolve connects in a goroutine, which sends the socket to the worker.
func (a *attempt) resolve(w *worker) {
	dialer, addr := w.engine.Dialer, a.dial.Addr(a.n)
	ctx, cancel := context.WithCancel(w.engine.serving)
	a.cancel = cancel
	dialer.Go(func() {
		defer cancel()
		fd := int32(-1)
		conn, err := dialer.Connect(ctx, addr)
		if err == nil {
			fd, err = dup(conn.(syscall.Conn))
			conn.Close()
		}
		if !w.send(func(w *worker) { a.connected(w, fd, err) }) && err == nil {
			sysClose(fd)
		}
	})
}

// connected continues the attempt after resolve.
func (a *attempt) connected(w *worker, fd int32, err error) {
	if !slices.Contains(a.dial.attempts, a) { // the dial is over, or the attempt has timed out
		if err == nil {
			sysClose(fd)
		}
		return
	}
	if err == nil {
		a.fd, a.state = fd, dialing
		if err = w.register(fd, a, allEvents); err != nil {
			sysClose(fd)
			a.fd, err = -1, a.dialError(err)
		}
	}
	if err != nil {
		a.fail(w, err)
	}
}

// event continues an attempt after an event of its socket.
func (a *attempt) event(w *worker, events uint32) {
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		a.hungUp = true
	}
	if a.state == dialing {
		if events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			if errno := sysError(a.fd); errno != 0 {
				a.fail(w, a.dialError(errno))
				return
			}
		}
		if events&unix.EPOLLOUT == 0 {
			return
		}
		if local, remote := sysAddrs(a.fd); w.engine.Dialer.IsOwn(local.Addr(), remote) {
			a.fail(w, a.dialError(upstream.ErrLoop))
			return
		}
		a.state = awaiting
	}
	if a.sent < len(a.hello) {
		if errno := a.sendHello(); errno != 0 && errno != unix.EAGAIN {
			a.fail(w, upstream.AnswerError(a.dial.Addr(a.n), errno))
			return
		}
		if !a.dial.race {
			a.win(w, nil, events&^unix.EPOLLOUT != 0)
			return
		}
	}
	if events&^unix.EPOLLOUT != 0 {
		a.readAnswer(w)
	}
}

// sendHello sends as much of the ClientHello as the peer accepts. It sends
// nothing before the connection is established.
func (a *attempt) sendHello() unix.Errno {
	n, errno := sysSend(a.fd, a.hello[a.sent:], 0)
	if errno == 0 {
		a.state = awaiting
	}
	a.sent += n
	return errno
}

// readAnswer reads until the first TLS record is complete or no more data is
// available.
func (a *attempt) readAnswer(w *worker) {
	for {
		n, errno := sysRecv(a.fd, w.buf[:tlsrecord.MaxSize-len(a.answer)])
		if errno == unix.EAGAIN {
			return
		}
		in := w.buf[:n]
		if len(a.answer) > 0 {
			a.answer = append(a.answer, in...)
			in = a.answer
		}
		size, err := tlsrecord.Size(in)
		switch {
		case errno != 0:
			err = errno
		case n == 0:
			err = upstream.ErrClosed
		}
		if err != nil {
			a.fail(w, upstream.AnswerError(a.dial.Addr(a.n), err))
			return
		}
		if len(in) >= max(size, tlsrecord.HeaderSize) {
			a.win(w, in, true)
			return
		}
		if a.answer == nil {
			a.answer = slices.Clone(in)
		}
	}
}

// win makes the socket the upstream of the connection and starts to relay. more
// means that the socket may have more data to read.
func (a *attempt) win(w *worker, answer []byte, more bool) {
	d, c := a.dial, a.dial.conn
	w.updateNow()
	c.address = d.Won(a.n, w.time())
	c.session.Connected(d.Addr(a.n), d.Failures(), w.time())
	u := &c.upstream
	u.fd, u.readable, u.writable, u.hungUp = a.fd, more, true, a.hungUp
	c.client.writable = true
	w.table[a.fd].handler = u
	a.fd = -1
	if rest := a.hello[a.sent:]; len(rest) > 0 {
		c.client.held = slices.Clone(rest)
		u.writable = false
	}
	c.client.count(a.sent)
	c.state, c.since = relaying, w.now
	w.young.push(c)
	d.release(w)
	if len(answer) > 0 {
		u.write(w, &c.client, answer, 0)
	}
	if c.state == relaying {
		c.relay(w, &c.client)
	}
}

// fail ends the attempt and tries the next address. The dial may be over when
// it returns.
func (a *attempt) fail(w *worker, err error) {
	d := a.dial
	a.close(w)
	d.attempts = slices.DeleteFunc(d.attempts, func(other *attempt) bool { return other == a })
	d.Failed(a.n, err, w.time())
	d.advance(w)
}

func (a *attempt) close(w *worker) {
	if a.cancel != nil {
		a.cancel()
	}
	if a.fd >= 0 {
		w.unregister(a.fd)
		sysClose(a.fd)
		a.fd = -1
	}
}

// timers are the dials of a worker, a heap by due time (container/heap).
type timers []*dial

// set makes d due at the time at.
func (t *timers) set(d *dial, at time.Duration) {
	d.due = at
	if d.index == 0 {
		heap.Push(t, d)
	} else {
		heap.Fix(t, d.index-1)
	}
}

// stop removes d. It may be called again.
func (t *timers) stop(d *dial) {
	if d.index > 0 {
		heap.Remove(t, d.index-1)
	}
}

// expire runs the dials that are due. It returns the time at which the next
// dial is due, or never.
func (t *timers) expire(w *worker) time.Duration {
	for len(*t) > 0 {
		d := (*t)[0]
		if d.due > w.now {
			return d.due
		}
		d.expire(w) // sets a later time, or stops the timer
	}
	return never
}

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].due < t[j].due }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i+1, j+1
}

func (t *timers) Push(x any) {
	*t = append(*t, x.(*dial))
	x.(*dial).index = len(*t)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	d := (*t)[last]
	(*t)[last] = nil
	*t, d.index = (*t)[:last], 0
	return d
}
