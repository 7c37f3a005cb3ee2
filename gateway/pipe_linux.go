// SPDX-License-Identifier: MPL-2.0

package gateway

import "golang.org/x/sys/unix"

const (
	// pipeSize is how much one pipe may hold, in bytes, if the system allows it: then a splice moves that much.
	pipeSize = 1 << 20
	// sparePipes is how many empty pipes a worker keeps.
	sparePipes = 16
)

// pipe is where the kernel keeps bytes on their way from one socket to another.
type pipe struct {
	r, w int32
	held int // bytes in it
}

// pipes lends pipes to those through which much flows, for as long as it does.
type pipes struct {
	spare []*pipe
	open  int // with those that are lent
	max   int
}

// get returns an empty pipe, or nil if there is none left.
func (p *pipes) get() *pipe {
	if n := len(p.spare); n > 0 {
		x := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return x
	}
	if p.open >= p.max {
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		return nil
	}
	p.open++
	unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // else it has the usual size
	return &pipe{r: int32(fds[0]), w: int32(fds[1])}
}

// put takes a pipe back. One that still holds something is closed.
func (p *pipes) put(x *pipe) {
	if x.held > 0 || len(p.spare) >= sparePipes {
		x.close()
		p.open--
		return
	}
	p.spare = append(p.spare, x)
}

func (p *pipes) close() {
	for _, x := range p.spare {
		x.close()
	}
	p.spare = nil
}

func (x *pipe) close() {
	sysClose(x.r)
	sysClose(x.w)
}
