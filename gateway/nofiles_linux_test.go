// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
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

	"github.com/wanfed/wanfed/gateway/internal/sockets"
	"github.com/wanfed/wanfed/internal/testutil"
)

// exhaust opens files until this process may open only free more. restore
// undoes that. Nothing else may run in between.
func exhaust(t testing.TB, free int) (restore func()) {
	t.Helper()
	for last := -1; last != files(t); <-time.After(20 * time.Millisecond) {
		last = files(t)
		runtime.GC() // closes pipes that package net keeps for splicing
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	restore = func() {
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
			restore()
			t.Fatal(err)
		}
		held = append(held, f)
	}
	for range free {
		held[len(held)-1].Close()
		held = held[:len(held)-1]
	}
	return restore
}

// readSocket reads from a socket with a timeout, which signals interrupt
// (signal(7)).
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

// Connections arrive at a gateway that cannot open more files. It closes and
// counts them, and continues when it can.
func testNoFiles(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{engine: e, MaxConns: 100}, Route{Match: "files.example", To: []string{addr}})
	first, _ := p.connect(t, "files.example", 4) // everything that is needed is open now
	to := p.listener.Addrs()[0].(*net.TCPAddr)
	var clients []int
	for range 20 { // in this process: they need their files before there are no more
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
		clients = append(clients, fd)
	}
	restore := exhaust(t, 0)
	for i, fd := range clients {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
		if n, err := readSocket(fd, make([]byte, 1)); n > 0 || err != nil && err != syscall.ECONNRESET {
			t.Errorf("connection %d: read %d bytes, %v; want it closed", i, n, err)
		}
	}
	restore()
	first.Write([]byte("x")) // open connections continue
	if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	for { // the first one may still be closed
		if _, ok := p.from(t, "127.0.0.1", "files.example"); ok {
			break
		}
	}
	if st := p.listener.Stats(); st.Refused[ReasonNoFiles] < 20 || st.Accepted != st.Refused[ReasonNoFiles]+2 {
		t.Errorf("Stats() = %+v, want at least 20 no_files and 2 others", st)
	}
}

func TestNoReserveFile(t *testing.T) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) { testNoReserveFile(t, e) })
	}
}

// testNoReserveFile runs out of files without a reserve file. The gateway must
// pause between its attempts to accept, and later serve the pending connection.
func testNoReserveFile(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	var log syncBuffer
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{engine: e, MaxConns: 100, Logger: slog.New(slog.NewTextHandler(&log, nil))}, Route{Match: "reserve.example", To: []string{addr}})
	p.connect(t, "reserve.example", 4) // everything that is needed is open now
	to := p.listener.Addrs()[0].(*net.TCPAddr)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	p.reserve.Close()
	restore := exhaust(t, 0)
	began := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
		t.Error(err)
	}
	attempts := func() int { return strings.Count(log.String(), "cannot accept connections") }
	testutil.Eventually(t, waitLimit, func() bool { return attempts() >= 3 }, "three attempts to accept")
	n, most := attempts(), runtime.GOMAXPROCS(0)*(1+int(time.Since(began)/sockets.MinAcceptPause)) // each worker pauses on its own
	if n > most {
		t.Errorf("%d attempts in %v, want at most %d", n, time.Since(began), most)
	}
	restore()
	if _, err := unix.Write(fd, helloFor(t, "reserve.example")); err != nil {
		t.Error(err)
	}
	if n, err := readSocket(fd, make([]byte, 5)); n != 5 || err != nil {
		t.Errorf("pending connection: read %d bytes, %v; want 5", n, err)
	}
	if n := p.listener.Stats().Refused[ReasonNoFiles]; n != 0 {
		t.Errorf("no_files = %d, want 0", n)
	}
}

func TestCheckFiles(t *testing.T) {
	if err := CheckFiles((MaxFiles() - otherFiles) / filesPerConn); err != nil {
		t.Error(err)
	}
	if err := CheckFiles(MaxFiles()); err == nil {
		t.Error("CheckFiles() of as many connections as files = nil, want an error")
	}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur != r.Max {
		t.Errorf("limit of files = %d, %v; want the hard limit %d", r.Cur, err, r.Max)
	}
}
