// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a worker waits for. Events are edge-triggered but for those of doors and the bell: one comes when the state of a socket
// changes, and what can be done must be done until the socket says that it can no more.
const (
	inEvents  = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	allEvents = inEvents | unix.EPOLLOUT
)

const (
	maxEvents   = 256 // taken at once
	spareStruct = 256 // pairs and searches that a worker keeps for the next connections
)

// handler does what an event on a descriptor calls for.
type handler interface {
	event(w *worker, what uint32)
}

// entry says who handles the events of a descriptor. Events of an earlier use of its number have another life.
type entry struct {
	handler handler
	life    uint32
}

// worker owns connections from their accept to their end: nobody else touches them. All its methods but post, and all
// of what belongs to it, are for its goroutine, run.
type worker struct {
	engine  *epollEngine
	ep      int
	bell    int // an eventfd: there is mail
	table   []entry
	life    uint32
	doors   []*door
	start   time.Time
	now     time.Time // of this turn
	yielded time.Time // when others could have the processor last
	heard   time.Time // when the last events came
	burst   int       // how often they came since there were none for a while
	lively  bool      // they come often
	pairs   int
	waiting waiting
	young   queue // relaying for less than youth
	timers  timers
	ready   []*socket // have more to move
	pipes   pipes
	buf     [MaxHelloSize]byte // for what is being read; nothing stays in it from one event to the next

	sparePairs    []*pair
	spareSearches []*search

	mu     sync.Mutex
	mail   []message
	closed bool // takes no more mail
}

// message is what others tell a worker.
type message struct {
	kind mail
	// mailConnected: the outcome of an attempt of this search, if it still has this life.
	search *search
	life   uint32
	n      int
	fd     int32
	err    error
}

type mail uint8

const (
	mailStop      mail = iota // accept no more, and end when the last connection does
	mailClose                 // close all connections
	mailShed                  // make room for a connection of another worker
	mailConnected             // a socket that a goroutine connected
)

// openWorker makes one of so many workers for these listeners.
func openWorker(e *epollEngine, workers int, listeners []boundSocket) (*worker, error) {
	w := &worker{engine: e, ep: -1, bell: -1, start: e.start, pipes: pipes{max: max(4, maxPipes()/workers)}}
	var err error
	if w.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return w, os.NewSyscallError("epoll_create1", err)
	}
	if w.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return w, os.NewSyscallError("eventfd", err)
	}
	if err := w.register(int32(w.bell), bell{}, unix.EPOLLIN); err != nil {
		return w, err
	}
	for _, l := range listeners {
		if err := w.openDoor(l); err != nil {
			return w, err
		}
	}
	return w, nil
}

// close closes what openWorker opened. Nothing else is open when run has returned.
func (w *worker) close() {
	w.mu.Lock()
	w.closed = true
	mail := w.mail
	w.mail = nil
	w.mu.Unlock()
	for _, m := range mail {
		if m.kind == mailConnected && m.err == nil {
			sysClose(m.fd)
		}
	}
	for _, d := range w.doors {
		d.close(w)
	}
	w.pipes.close()
	for _, fd := range []int{w.bell, w.ep} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// run handles events until it was told to stop and the last connection has ended.
func (w *worker) run() error {
	var events [maxEvents]unix.EpollEvent
	for w.pairs > 0 || len(w.doors) > 0 {
		n, err := w.wait(events[:])
		if err != nil {
			return os.NewSyscallError("epoll_wait", err)
		}
		if w.now = time.Now(); n > 0 {
			w.hear()
		}
		w.yield()
		for i := range events[:n] {
			ev := &events[i]
			if e := &w.table[ev.Fd]; e.handler != nil && e.life == uint32(ev.Pad) {
				e.handler.event(w, ev.Events)
			}
		}
		w.goOn()
	}
	return nil
}

// goOn gives their next turn to those that had more to move.
func (w *worker) goOn() {
	ready := w.ready
	w.ready = nil
	for _, s := range ready {
		if s.queued {
			s.queued = false
			s.pair.relay(w, s)
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

// register has events of fd go to h.
func (w *worker) register(fd int32, h handler, events uint32) error {
	for int(fd) >= len(w.table) {
		w.table = append(w.table, make([]entry, 64+len(w.table))...)
	}
	w.life++
	w.table[fd] = entry{h, w.life}
	return w.control(unix.EPOLL_CTL_ADD, fd, events)
}

func (w *worker) change(fd int32, events uint32) { w.control(unix.EPOLL_CTL_MOD, fd, events) }

// forget has no more events of fd handled. Its close takes it out of the set.
func (w *worker) forget(fd int32) { w.table[fd].handler = nil }

func (w *worker) control(op int, fd int32, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: fd, Pad: int32(w.table[fd].life)}
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(w.ep), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	if e != 0 {
		w.forget(fd)
		return os.NewSyscallError("epoll_ctl", e)
	}
	return nil
}

// post gives the worker a message. It returns false if the worker has ended. Anyone may call it at any time.
func (w *worker) post(m message) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.mail = append(w.mail, m)
	unix.Write(w.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it cannot be full
	return true
}

// bell handles the mail.
type bell struct{}

func (bell) event(w *worker, _ uint32) {
	var b [8]byte
	unix.Read(w.bell, b[:])
	w.mu.Lock()
	mail := w.mail
	w.mail = nil
	w.mu.Unlock()
	for _, m := range mail {
		switch m.kind {
		case mailStop:
			for _, d := range w.doors {
				d.leave(w)
			}
			w.doors = nil
		case mailClose:
			w.closeAll()
		case mailShed:
			w.shed()
		case mailConnected:
			m.search.connected(w, m)
		}
	}
}

func (w *worker) closeAll() {
	for _, e := range w.table {
		if s, ok := e.handler.(*socket); ok {
			s.pair.trip.endsBy(endStopped)
			s.pair.close(w)
		}
	}
}
