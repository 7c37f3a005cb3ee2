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

// exhaust lowers the limit of open files of this process and opens files up to
// the limit. restore closes the files and restores the limit.
func exhaust(t testing.TB) (restore func()) {
	t.Helper()
	for last := -1; last != files(t); <-time.After(20 * time.Millisecond) {
		last = files(t)
		runtime.GC() // closes pipes that package net keeps for splicing
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	var held []*os.File
	restore = func() {
		for _, f := range held {
			f.Close()
		}
		held = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Errorf("Setrlimit() = %v, want nil", err)
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
	return restore
}

// readSocket reads from a socket with a receive timeout. Signals interrupt
// reads of these sockets (signal(7)).
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

// Connections arrive at a gateway that cannot open more files. The gateway
// closes and counts the connections, and serves new ones when it can open files
// again.
func testNoFiles(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, MaxConns: 100}, Route{Match: "files.example", To: []string{addr}})
	first, _ := p.connect(t, "files.example", 4) // opens all files that the gateway needs
	to := p.listener.Addrs()[0].(*net.TCPAddr)
	var clients []int
	for range 20 { // opens the sockets of this process before exhaust
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
		clients = append(clients, fd)
	}
	restore := exhaust(t)
	for i, fd := range clients {
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
			t.Errorf("Connect() of client %d = %v, want nil", i, err)
		}
		if n, err := readSocket(fd, make([]byte, 1)); n > 0 || err != nil && err != syscall.ECONNRESET {
			t.Errorf("Read() of client %d = %d bytes, %v; want the end or a reset", i, n, err)
		}
	}
	restore()
	first.Write([]byte("x"))
	if _, err := io.ReadFull(first, make([]byte, 1)); err != nil {
		t.Errorf("read of a connection that was open = %v, want nil", err)
	}
	for { // a connection just after restore may still be closed
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

// A gateway without a reserve file is out of files. It must pause between its
// attempts to accept, and later serve the pending connection.
func testNoReserveFile(t *testing.T, e engineKind) {
	testutil.Cluster(t)
	var log syncBuffer
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, MaxConns: 100, Logger: slog.New(slog.NewTextHandler(&log, nil))},
		Route{Match: "reserve.example", To: []string{addr}})
	p.connect(t, "reserve.example", 4) // opens all files that the gateway needs
	to := p.listener.Addrs()[0].(*net.TCPAddr)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20})
	p.reserve.Close()
	restore := exhaust(t)
	began := time.Now()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}); err != nil {
		t.Errorf("Connect() = %v, want nil", err)
	}
	attempts := func() int { return strings.Count(log.String(), "cannot accept connections") }
	testutil.Eventually(t, waitLimit, func() bool { return attempts() >= 3 }, "three attempts to accept")
	n, most := attempts(), runtime.GOMAXPROCS(0)*(1+int(time.Since(began)/sockets.MinAcceptPause)) // of all workers
	if n > most {
		t.Errorf("attempts to accept in %v = %d, want at most %d", time.Since(began), n, most)
	}
	restore()
	if _, err := unix.Write(fd, helloFor(t, "reserve.example")); err != nil {
		t.Errorf("Write() = %v, want nil", err)
	}
	if n, err := readSocket(fd, make([]byte, 5)); n != 5 || err != nil {
		t.Errorf("Read() of the pending connection = %d bytes, %v; want 5", n, err)
	}
	if n := p.listener.Stats().Refused[ReasonNoFiles]; n != 0 {
		t.Errorf("no_files = %d, want 0", n)
	}
}

func TestCheckFiles(t *testing.T) {
	if err := CheckFiles((MaxFiles() - otherFiles) / filesPerConn); err != nil {
		t.Errorf("CheckFiles() at the limit = %v, want nil", err)
	}
	if err := CheckFiles(MaxFiles()); err == nil {
		t.Error("CheckFiles() of as many connections as files = nil, want an error")
	}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur != r.Max {
		t.Errorf("soft limit of files = %d, %v; want the hard limit %d", r.Cur, err, r.Max)
	}
}
