// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// echoUpstream sends back what it is sent.
func echoUpstream(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(2 * time.Minute))
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// clientHello is what a client that wants sni sends first.
func clientHello(t testing.TB, sni string) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go func() {
		defer client.Close()
		tls.Client(client, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake()
	}()
	b := make([]byte, 64<<10)
	n, err := server.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// open connects through the gateway and has its hello sent back.
func (g *gatewayProc) open(hello []byte) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", g.addr, 20*time.Second)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(refuseLimit))
	if err := roundTrip(c, hello); err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	return c, nil
}

func roundTrip(c net.Conn, msg []byte) error {
	if _, err := c.Write(msg); err != nil {
		return err
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, msg) {
		return fmt.Errorf("%d bytes came back wrong", len(got))
	}
	return nil
}

// load opens connections, many at a time, until stop; each must work.
func (g *gatewayProc) load(t testing.TB, hello []byte, at int, stop <-chan struct{}) (opened *atomic.Int64, join func()) {
	opened = new(atomic.Int64)
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := g.open(hello)
				if err != nil {
					t.Errorf("connection %d: %v", opened.Load(), err)
					return
				}
				c.(*net.TCPConn).SetLinger(0) // no port is left waiting
				c.Close()
				opened.Add(1)
			}
		})
	}
	return opened, wg.Wait
}

// TestHandover has one process take over from another, several times, while clients connect: 1,000 of them, or as many as
// WANFED_HANDOVER_CONNECTIONS says. None is refused, and connections that are open stay open all the while.
func TestHandover(t *testing.T) {
	for _, at := range []int{1, 16} { // one at a time would find a connection that waits until the next one comes
		t.Run(fmt.Sprintf("%d at a time", at), func(t *testing.T) { testHandover(t, at) })
	}
}

func testHandover(t *testing.T, at int) {
	connections, handovers := int64(1000), 3
	if s := os.Getenv("WANFED_HANDOVER_CONNECTIONS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		connections, handovers = int64(n), 10
	}
	dir := t.TempDir()
	routes, access := filepath.Join(dir, "routes.hcl"), filepath.Join(dir, "access.json")
	write(t, routes, `route "*.server.dc2.wanfed" { to = ["`+echoUpstream(t)+`"] }`)
	g := startGatewayProc(t, "--listen", "127.0.0.1:0", "--routes", routes, "--access-log", access, "--hot-restart-drain-time", "1m")
	hello := clientHello(t, "srv1.server.dc2.wanfed")
	var stay []net.Conn
	for range 20 {
		c, err := g.open(hello)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		stay = append(stay, c)
	}
	stop := make(chan struct{})
	opened, join := g.load(t, hello, at, stop)
	halt := sync.OnceFunc(func() { close(stop); join() })
	defer halt()
	until := func(n int64) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for timeout := time.After(2 * time.Minute); opened.Load() < n && !t.Failed(); {
			select {
			case <-tick.C:
			case <-timeout:
				t.Fatalf("only %d of %d connections", opened.Load(), n)
			}
		}
	}
	pid := g.first.Pid
	for i := range handovers {
		until(connections * int64(i) / int64(handovers))
		if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		m := g.wait(t, `msg="new process took over, draining connections" .*pid=(\d+)`, i+1)
		pid, _ = strconv.Atoi(m[1])
	}
	until(connections)
	halt()
	for i, c := range stay {
		if err := roundTrip(c, []byte("still here")); err != nil {
			t.Errorf("connection %d, open since the first process: %v", i, err)
		}
		c.Close()
	}
	t.Logf("%d connections, %d handovers", opened.Load(), handovers)
	select { // its connections have ended, so it ends, long before the minute is over
	case <-g.ended:
	case <-time.After(refuseLimit):
		t.Error("the first process does not end")
	}
	if code, body := get(t, g.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz of the last process: %d %s", code, body)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.wait(t, "msg=stopping", 1)
	for {
		c, err := net.Dial("tcp", g.addr)
		if err != nil {
			break // nobody kept the socket
		}
		c.Close()
	}
	b, err := os.ReadFile(access)
	if n := int64(bytes.Count(b, []byte(`"end":"`))); err != nil || n < opened.Load() {
		t.Errorf("%d lines of %d connections in the access log of all processes; %v", n, opened.Load(), err)
	}
}

// TestHandoverFails has new processes that do not come up: the old one goes on, and the next one may take over.
func TestHandoverFails(t *testing.T) {
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	good := `route "*.server.dc2.wanfed" { to = ["` + echoUpstream(t) + `"] }`
	write(t, routes, good)
	g := startGatewayProc(t, "--listen", "127.0.0.1:0", "--routes", routes)
	hello := clientHello(t, "srv1.server.dc2.wanfed")
	stay, err := g.open(hello)
	if err != nil {
		t.Fatal(err)
	}
	defer stay.Close()
	write(t, routes, `route "*.server.dc2.wanfed" { to = ["nowhere"] }`)
	for n := range 2 {
		if err := g.first.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		g.wait(t, `msg="hot restart failed, still serving" err=".*exit status 1`, n+1)
		c, err := g.open(hello)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if code, _ := get(t, g.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}
	write(t, routes, good)
	if err := g.first.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	g.wait(t, `msg="new process took over, draining connections"`, 1)
	if err := roundTrip(stay, []byte("still here")); err != nil {
		t.Error(err)
	}
	// The old process, which would stay with its connection, is told to end.
	if err := g.first.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-g.ended:
	case <-time.After(refuseLimit):
		t.Error("the old process does not end")
	}
	if err := roundTrip(stay, []byte("?")); err == nil {
		t.Error("its connection is still open")
	}
	if c, err := g.open(hello); err != nil {
		t.Error(err)
	} else {
		c.Close()
	}
}

// TestHandoverTellsTheServiceManager reads what systemd would.
func TestHandoverTellsTheServiceManager(t *testing.T) {
	told := serviceManager(t)
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	write(t, routes, `route "*.server.dc2.wanfed" { to = ["127.0.0.1:1"] }`)
	g := startGatewayProc(t, "--listen", "127.0.0.1:0", "--routes", routes, "--shutdown-delay", "0s")
	told("READY=1")
	if err := g.first.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	told("RELOADING=1", "READY=1")
	if err := g.first.Signal(syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	pid := g.wait(t, `msg="new process took over, draining connections" .*pid=(\d+)`, 1)[1]
	told("READY=1", "MAINPID="+pid)
	n, _ := strconv.Atoi(pid)
	if err := syscall.Kill(n, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	told("STOPPING=1")
	<-g.ended
}

func write(t testing.TB, path, s string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
		t.Fatal(err)
	}
}
