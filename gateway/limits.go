// SPDX-License-Identifier: MPL-2.0

package gateway

import "fmt"

const (
	defaultMaxConns = 65536
	filesPerConn    = 2  // its sockets
	filesPerPipe    = 2  // its ends
	otherFiles      = 64 // listeners, logs
	shareForMore    = 32 // one of so many files is for dials that race, and pipes; who gets no pipe copies
)

// MaxConns is the limit of client connections that is in force.
func (p *Proxy) MaxConns() int { return int(p.maxConns.Load()) }

// SetMaxConns changes Config.MaxConns; 0 is its default. Open connections stay, even if they are more than n.
func (p *Proxy) SetMaxConns(n int) {
	files := maxFiles()
	p.maxConns.Store(int64(orDefault(n, max(1, min(defaultMaxConns, (files-files/shareForMore-otherFiles)/filesPerConn)))))
}

// MaxPerUpstream is the limit of connections to one upstream address that is in force; 0: there is none.
func (p *Proxy) MaxPerUpstream() int { return int(p.dialer.most.Load()) }

// SetMaxPerUpstream changes Config.MaxPerUpstream. Open connections stay, and count.
func (p *Proxy) SetMaxPerUpstream(n int) { p.dialer.most.Store(int64(max(0, n))) }

// maxPipes is how many pipes EngineEpoll may have: half of the files that are for more than sockets.
func maxPipes() int { return min(max(16, maxFiles()/shareForMore/2/filesPerPipe), 1024) }

// MaxFiles is how many files and sockets this process may have open: the hard limit of the system (RLIMIT_NOFILE), to which
// the Go runtime raises the soft one when a process starts. It is 1<<30 where systems are not asked.
func MaxFiles() int { return maxFiles() }

// CheckFiles says whether this process may open the files that n client connections need at least, and if not, what to do.
func CheckFiles(n int) error {
	files, need := maxFiles(), otherFiles+filesPerConn*n
	if files >= need {
		return nil
	}
	return fmt.Errorf("%d connections need %d files open, and this process may have %d: raise that (ulimit -n %d; LimitNOFILE=%d in a unit of systemd), or allow at most %d connections",
		n, need, files, need, need, max(0, (files-otherFiles)/filesPerConn))
}

// begin starts what runs beside the engine. The function that it returns ends and joins that.
func (p *Proxy) begin() (end func()) {
	if err := CheckFiles(p.MaxConns()); err != nil {
		p.log.Warn("too few files for the limit of connections", "err", err)
	}
	p.spare.hold()
	written := make(chan struct{})
	go func() {
		p.access.run()
		close(written)
	}()
	return func() {
		p.spare.release()
		close(p.access.queue)
		<-written
	}
}
