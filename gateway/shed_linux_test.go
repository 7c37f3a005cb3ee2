// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// exhaust leaves this process room for free more files, until give is called. Nothing else may run meanwhile.
func exhaust(t testing.TB, free int) (give func()) {
	t.Helper()
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

// TestNoFiles has connections wait for a gateway that may open no more files: it closes them and counts them, and goes on when
// it may.
func TestNoFiles(t *testing.T) {
	addr := upstream(t, named("srv1"))
	p, err := New(Config{Logger: slog.New(slog.DiscardHandler), MaxConns: 100, Drain: -1})
	if err != nil {
		t.Fatal(err)
	}
	side := NewSide("wan")
	side.SetTable(mustTable(t, Route{Match: "files.example", To: []string{addr}}))
	ln := listen(t)
	r := &running{Proxy: p, side: side, addr: ln.Addr().String()}
	var waiting []*net.TCPConn
	for range 20 {
		waiting = append(waiting, r.raw(t))
	}
	give := exhaust(t, 1) // for the spare
	ctx, cancel := context.WithCancel(t.Context())
	errc := make(chan error, 1)
	go func() { errc <- p.Run(ctx, Listener{ln, side}) }()
	for i, c := range waiting {
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	give()
	for { // one that comes at the very moment may still be closed
		if _, ok := r.from(t, "127.0.0.1", "files.example"); ok {
			break
		}
	}
	if st := side.Stats(); st.Refused[ReasonNoFiles] < 20 || st.Accepted != st.Refused[ReasonNoFiles]+1 {
		t.Errorf("%+v", st)
	}
	cancel()
	if err := <-errc; err != nil {
		t.Error(err)
	}
}

func TestCheckFiles(t *testing.T) {
	if err := CheckFiles((maxFiles() - otherFiles) / leastPerConn); err != nil {
		t.Error(err)
	}
	if err := CheckFiles(maxFiles()); err == nil {
		t.Error("a connection needs two files")
	} else {
		t.Log(err)
	}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur != r.Max {
		t.Errorf("limit of files is %d, not raised to %d; %v", r.Cur, r.Max, err)
	}
}
