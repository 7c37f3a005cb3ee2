// SPDX-License-Identifier: MPL-2.0

package reactor

import (
	"math"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Events are edge-triggered, except the events of acceptors and of wakeup:
// epoll reports one event when the state of a socket changes. The handler of
// the event then reads or writes until the socket would block.
const (
	inEvents  = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	allEvents = inEvents | unix.EPOLLOUT
)

const (
	// maxEvents bounds the events of one wait.
	maxEvents = 256
	// shortWait bounds a wait without the scheduler of Go, and the work between
	// two yields to other goroutines.
	shortWait = 2 * time.Millisecond
	// gapWeight and maxGap are the parameters of the smoothed worker.gap: a new
	// sample has the weight 1/gapWeight and counts at most maxGap.
	gapWeight, maxGap = 8, 8 * shortWait
)

// eventHandler handles an event of a descriptor.
type eventHandler interface {
	event(w *worker, events uint32)
}

// entry is the handler of a descriptor. The generation distinguishes uses of
// one descriptor number: events of an earlier use are dropped.
type entry struct {
	handler    eventHandler
	generation uint32
}

// worker is an event loop. It owns connections from accept to close: no other
// goroutine uses them. Except send, its methods and its fields are for its own
// goroutine, run. Times are durations since the start of the engine.
type worker struct {
	engine     *Engine
	epoll      int
	parking    parking // owns epoll after openWorker
	events     [maxEvents]unix.EpollEvent
	wakeup     int     // an eventfd that is readable while there are messages
	table      []entry // by descriptor
	generation uint32
	acceptors  []*acceptor
	now        time.Duration // of the current round
	lastEvents time.Duration
	gap        time.Duration // smoothed time between two rounds with events
	lastYield  time.Duration
	parked     bool // since the last short wait
	conns      int
	hellos     queue // connections whose ClientHello is incomplete
	young      queue // relaying connections whose sockets have no keepalive yet
	timers     timers
	freeDials  []*dial     // for the next connections
	ready      []*socket   // reached maxMove and have more bytes to move
	tryReserve func() bool // the method reserveConn; a field saves an allocation per connection
	pipes      pipes
	buf        [MaxHello]byte // for one read; nothing stays in it between events

	mu       sync.Mutex
	messages []func(*worker) // by other goroutines
	closed   bool            // accepts no messages
}

// openWorker returns one of n workers. The caller closes it, also after an
// error.
func openWorker(e *Engine, n int) (*worker, error) {
	w := &worker{engine: e, epoll: -1, wakeup: -1, pipes: pipes{max: max(4, e.MaxPipes/n)}}
	w.tryReserve = w.reserveConn
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return w, os.NewSyscallError("epoll_create1", err)
	}
	if w.wakeup, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return w, os.NewSyscallError("eventfd", err)
	}
	if w.parking, err = newParking(w.epoll); err != nil {
		return w, err
	}
	if err := w.register(int32(w.wakeup), w, unix.EPOLLIN); err != nil {
		return w, err
	}
	for _, l := range e.Listeners {
		if err := w.openAcceptor(l); err != nil {
			return w, err
		}
	}
	return w, nil
}

// close releases the resources of the worker. run has returned, or was not
// called.
func (w *worker) close() {
	for _, a := range w.acceptors {
		a.close(w)
	}
	w.acceptors = nil
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.closeConns()     // run leaves connections open if it fails
	w.handleMessages() // the last messages may hold sockets, which they close now
	w.pipes.close()
	if w.wakeup >= 0 {
		unix.Close(w.wakeup)
	}
	if w.parking.file != nil {
		w.parking.file.Close()
	} else if w.epoll >= 0 {
		unix.Close(w.epoll)
	}
}

// run handles events until a message stops it and the last connection has
// ended.
func (w *worker) run() error {
	w.gap = maxGap
	w.updateNow()
	for w.conns > 0 || len(w.acceptors) > 0 {
		n, err := w.wait()
		if err != nil {
			return err
		}
		if w.updateNow(); n > 0 {
			w.gap += (min(w.now-w.lastEvents, maxGap) - w.gap) / gapWeight
			w.lastEvents = w.now
		}
		if w.now-w.lastYield >= shortWait {
			w.lastYield = w.now
			runtime.Gosched()
		}
		for i := range w.events[:n] {
			ev := &w.events[i]
			if e := &w.table[ev.Fd]; e.handler != nil && e.generation == uint32(ev.Pad) {
				e.handler.event(w, ev.Events)
			}
		}
		w.resume()
	}
	return nil
}

func (w *worker) updateNow() { w.now = time.Since(w.engine.start) }

func (w *worker) time() time.Time { return w.engine.start.Add(w.now) }

// wait runs due actions, and returns the number of the next events. While
// events are frequent, it first waits for up to shortWait without the scheduler
// of Go. Such a wait takes half the processor time of a wait with the scheduler
// (docs/decisions/0002). If events are rare, the worker is parked instead (see
// parking), because a blocking system call would keep the monitor thread of Go
// busy (docs/decisions/0006).
func (w *worker) wait() (int, error) {
	timeout, short := w.runDue(), 0
	if w.gap < shortWait && w.now-w.lastEvents < shortWait {
		short = int(shortWait / time.Millisecond)
	}
	if timeout >= 0 {
		short = min(short, timeout)
	}
	if short > 0 && w.parked {
		// The thread that now runs the worker has waited in the network poller of Go.
		// The events of parked workers need another thread there, or they wait for the
		// end of the short wait (docs/decisions/0096).
		w.parked = false
		runtime.Gosched() // starts one
	}
	if short > 0 || short == timeout {
		if n, errno := w.poll(short); errno != 0 || n > 0 || short == timeout {
			return n, nil // EINTR: the scheduler of Go wants to run something else, so run continues its loop
		}
	}
	if timeout >= 0 {
		timeout -= short
	}
	n, err := w.parking.await(w.poll, time.Duration(timeout)*time.Millisecond)
	w.parked = true
	w.lastYield = time.Since(w.engine.start)
	return n, err
}

// poll waits up to timeout, in milliseconds, and returns the number of events.
func (w *worker) poll(timeout int) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(w.epoll),
		uintptr(unsafe.Pointer(&w.events)), maxEvents, uintptr(timeout), 0, 0)
	return count(n, errno), errno
}

// never is the due time of an action that is not planned.
const never = time.Duration(math.MaxInt64)

// runDue runs due actions. It returns the milliseconds until the next action is
// due, or -1 if no action is planned.
func (w *worker) runDue() int {
	next := min(w.expireHellos(), w.timers.expire(w), w.startKeepalives(), w.reopenAcceptors())
	switch {
	case w.conns == 0 && len(w.acceptors) == 0, len(w.ready) > 0:
		return 0
	case next == never:
		return -1
	}
	return int((next - w.now + time.Millisecond - 1) / time.Millisecond)
}

// resume continues the sockets that reached maxMove.
func (w *worker) resume() {
	ready := w.ready
	w.ready = nil
	for _, s := range ready {
		if s.queued {
			s.queued = false
			s.conn.relay(w, s)
		}
	}
	if w.ready == nil {
		w.ready = ready[:0]
	}
}

func (w *worker) queue(s *socket) {
	if !s.queued {
		s.queued = true
		w.ready = append(w.ready, s)
	}
}

// register passes events of fd to h.
func (w *worker) register(fd int32, h eventHandler, events uint32) error {
	for int(fd) >= len(w.table) {
		w.table = append(w.table, make([]entry, 64+len(w.table))...)
	}
	w.generation++
	w.table[fd] = entry{h, w.generation}
	return w.control(unix.EPOLL_CTL_ADD, fd, events)
}

// unregister drops later events of fd. A close of fd removes it from the epoll
// set.
func (w *worker) unregister(fd int32) { w.table[fd].handler = nil }

func (w *worker) control(op int, fd int32, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: fd, Pad: int32(w.table[fd].generation)}
	_, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(w.epoll), uintptr(op), uintptr(fd),
		uintptr(unsafe.Pointer(&ev)), 0, 0)
	if errno != 0 {
		w.unregister(fd)
		return os.NewSyscallError("epoll_ctl", errno)
	}
	return nil
}

// send makes the worker call message. It returns false if the worker has ended.
// Any goroutine may call send.
func (w *worker) send(message func(*worker)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.messages = append(w.messages, message)
	unix.Write(w.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot block: the count is small
	return true
}

// event implements eventHandler for the eventfd wakeup.
func (w *worker) event(*worker, uint32) {
	var b [8]byte
	unix.Read(w.wakeup, b[:])
	w.handleMessages()
}

func (w *worker) handleMessages() {
	w.mu.Lock()
	messages := w.messages
	w.messages = nil
	w.mu.Unlock()
	for _, message := range messages {
		message(w)
	}
}

// stopAccepting makes run return after the last connection has ended.
func (w *worker) stopAccepting() {
	for _, a := range w.acceptors {
		a.stop(w)
	}
	w.acceptors = nil
}

func (w *worker) closeConns() {
	for _, e := range w.table {
		if s, ok := e.handler.(*socket); ok {
			s.conn.close(w, EndStopped)
		}
	}
}
