// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// exhaust leaves this process room for free more files, until give is called. Nothing else may run meanwhile.
func exhaust(t testing.TB, free int) (give func()) {
	t.Helper()
	for last := -1; last != files(t); <-time.After(20 * time.Millisecond) {
		last = files(t)
		runtime.GC() // the pipes that package net keeps for splicing are closed by that, at any time
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	give = func() {
		for _, f := range held {
			f.Close()
		}
		held = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		if err != nil || len(held) > 256 {
			give()
			t.Fatal(err)
		}
		held = append(held, f)
	}
	for range free {
		held[len(held)-1].Close()
		held = held[:len(held)-1]
	}
	return give
}

// readSocket reads from a socket with a timeout: signals cut that short, see signal(7).
func readSocket(fd int, b []byte) (n int, err error) {
	for n, err = unix.Read(fd, b); err == syscall.EINTR; {
		n, err = unix.Read(fd, b)
	}
	return n, err
}

func TestNoFiles(t *testing.T) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) { testNoFiles(t, e) })
	}
}

// testNoFiles has connections come to a gateway that may open no more files: it closes them and counts them, and goes on when it
// may.
func testNoFiles(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{engine: e, MaxConns: 100}, Route{Match: "files.example", To: []string{addr}})
	first, _ := p.connect(t, "files.example", 4) // all that is needed is open now
	to := p.listener.Addrs()[0].(*net.TCPAddr)
	var clients []int
	for range 20 { // in this process too: they must have their files before there are no more
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
		clients = append(clients, fd)
	}
	give := exhaust(t, 0)
	for i, fd := range clients {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		if n, err := readSocket(fd, make([]byte, 1)); n > 0 || err != nil && err != syscall.ECONNRESET {
			t.Errorf("connection %d: %d, %v", i, n, err)
		}
	}
	give()
	first.Write([]byte("x")) // those that are there go on
	if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	for { // one that comes at the very moment may still be closed
		if _, ok := p.from(t, "127.0.0.1", "files.example"); ok {
			break
		}
	}
	if st := p.listener.Stats(); st.Refused[ReasonNoFiles] < 20 || st.Accepted != st.Refused[ReasonNoFiles]+2 {
		t.Errorf("%+v", st)
	}
}

func TestNoSpareFile(t *testing.T) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) { testNoSpareFile(t, e) })
	}
}

// testNoSpareFile has a gateway that may open no more files, not even one to turn a connection away: it must rest between its
// attempts to accept, and serve the connection that waits when it can.
func testNoSpareFile(t *testing.T, e engineKind) {
	var log syncBuffer
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{engine: e, MaxConns: 100, Logger: slog.New(slog.NewTextHandler(&log, nil))}, Route{Match: "spare.example", To: []string{addr}})
	p.connect(t, "spare.example", 4) // all that is needed is open now
	to := p.listener.Addrs()[0].(*net.TCPAddr)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	p.reserve.Close()
	give := exhaust(t, 0)
	began := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
		t.Error(err)
	}
	attempts := func() int { return strings.Count(log.String(), "cannot accept connections") }
	until(t, func() bool { return attempts() >= 3 })
	n, most := attempts(), runtime.GOMAXPROCS(0)*(1+int(time.Since(began)/sockets.MinAcceptPause)) // each worker rests by itself
	if n > most {
		t.Errorf("%d attempts in %v", n, time.Since(began))
	}
	give()
	if _, err := unix.Write(fd, helloFor(t, "spare.example")); err != nil {
		t.Error(err)
	}
	if n, err := readSocket(fd, make([]byte, 5)); n != 5 || err != nil {
		t.Errorf("the connection that waited: %d, %v", n, err)
	}
	if n := p.listener.Stats().Refused[ReasonNoFiles]; n != 0 {
		t.Errorf("%d were turned away", n)
	}
}

func TestCheckFiles(t *testing.T) {
	if err := CheckFiles((MaxFiles() - otherFiles) / filesPerConn); err != nil {
		t.Error(err)
	}
	if err := CheckFiles(MaxFiles()); err == nil {
		t.Error("a connection needs two files")
	} else {
		t.Log(err)
	}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur != r.Max {
		t.Errorf("limit of files is %d, not raised to %d; %v", r.Cur, r.Max, err)
	}
}
