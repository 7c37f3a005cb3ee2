// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"fmt"
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

	"github.com/wanfed/wanfed/internal/testutil"
)

// awaitReplaced waits for the n-th hot restart and returns the id of the new
// process.
func (g *gatewayProcess) awaitReplaced(t testing.TB, n int) (pid int) {
	t.Helper()
	m := g.awaitLine(t, `msg="new process took over, draining connections" .*pid=(\d+)`, n)
	pid, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// load opens connections until stop is closed, concurrency at a time. A
// connection that fails is an error of the test.
func (g *gatewayProcess) load(
	t testing.TB, hello []byte, concurrency int, stop <-chan struct{},
) (opened *atomic.Int64, join func()) {
	opened = new(atomic.Int64)
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := g.open(hello)
				if err != nil {
					t.Errorf("open() of connection %d = %v, want nil", opened.Load(), err)
					return
				}
				c.(*net.TCPConn).SetLinger(0) // leaves no port in TIME_WAIT
				c.Close()
				opened.Add(1)
			}
		})
	}
	return opened, wg.Wait
}

// Hot restarts under load refuse no connection, and open connections stay open.
// The number of connections is 1,000, or WANFED_TEST_CONNECTIONS.
func TestHotRestart_UnderLoad(t *testing.T) {
	testutil.Cluster(t)
	// With one connection at a time, the test detects a connection that is
	// served only when another arrives.
	for _, concurrency := range []int{1, 16} {
		t.Run(fmt.Sprintf("%d at a time", concurrency), func(t *testing.T) { testHotRestart(t, concurrency) })
	}
}

func testHotRestart(t *testing.T, concurrency int) {
	connections, restarts := int64(1000), 3
	if s := os.Getenv("WANFED_TEST_CONNECTIONS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		connections, restarts = int64(n), 10
	}
	dir := t.TempDir()
	routes, access := filepath.Join(dir, "routes.hcl"), filepath.Join(dir, "access.json")
	writeFile(t, routes, `route "*.server.dc2.wanfed" { to = ["`+echoUpstream(t)+`"] }`)
	g := startGatewayProcess(t, unchanged, "--listen", "127.0.0.1:0", "--routes", routes,
		"--access-log", access, "--hot-restart-drain-time", "1m")
	hello := clientHello(t, "srv1.server.dc2.wanfed")
	var longLived []net.Conn
	for range 20 {
		c, err := g.open(hello)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		longLived = append(longLived, c)
	}
	stop := make(chan struct{})
	opened, join := g.load(t, hello, concurrency, stop)
	halt := sync.OnceFunc(func() { close(stop); join() })
	defer halt()
	awaitOpened := func(n int64) {
		t.Helper()
		testutil.Eventually(t, 2*time.Minute, func() bool { return opened.Load() >= n || t.Failed() },
			"%d connections", n)
	}
	pid := g.first.Pid
	for i := range restarts {
		awaitOpened(connections * int64(i) / int64(restarts))
		if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		pid = g.awaitReplaced(t, i+1)
	}
	awaitOpened(connections)
	halt()
	for i, c := range longLived {
		if err := roundTrip(c, []byte("still here")); err != nil {
			t.Errorf("roundTrip() on connection %d, opened before the restarts = %v, want nil", i, err)
		}
		c.Close()
	}
	t.Logf("%d connections, %d hot restarts", opened.Load(), restarts)
	g.awaitEnd(t) // a process without connections ends before its drain time
	g.checkStopped(t, pid)
	b, err := os.ReadFile(access)
	if n := int64(bytes.Count(b, []byte(`"end":"`))); err != nil || n < opened.Load() {
		t.Errorf("lines in the access log = %d, error %v, want at least %d", n, err, opened.Load())
	}
}

// checkStopped stops the last process, and checks that the listening socket
// closes.
func (g *gatewayProcess) checkStopped(t testing.TB, pid int) {
	t.Helper()
	if code, body := get(t, g.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz of the last process = %d %s, want %d", code, body, http.StatusOK)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	g.awaitLine(t, "msg=stopping", 1)
	testutil.Eventually(t, processTimeout, func() bool {
		c, err := net.Dial("tcp", g.addr)
		if err == nil {
			c.Close()
		}
		return err != nil
	}, "the listening socket closed in all processes")
}

// If a new process fails, the old process continues to serve, and a later hot
// restart succeeds.
func TestHotRestart_NewProcessFails(t *testing.T) {
	testutil.Cluster(t)
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	good := `route "*.server.dc2.wanfed" { to = ["` + echoUpstream(t) + `"] }`
	writeFile(t, routes, good)
	g := startGatewayProcess(t, unchanged, "--listen", "127.0.0.1:0", "--routes", routes)
	hello := clientHello(t, "srv1.server.dc2.wanfed")
	longLived, err := g.open(hello)
	if err != nil {
		t.Fatal(err)
	}
	defer longLived.Close()
	writeFile(t, routes, `route "*.server.dc2.wanfed" { to = ["nowhere"] }`)
	for n := range 2 {
		g.signal(t, syscall.SIGUSR2)
		g.awaitLine(t, `msg="hot restart failed, still serving" err=".*exit status 1`, n+1)
		g.checkOpen(t, hello)
	}
	if code, _ := get(t, g.admin+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d, want %d", code, http.StatusOK)
	}
	writeFile(t, routes, good)
	g.signal(t, syscall.SIGUSR2)
	g.awaitReplaced(t, 1)
	if err := roundTrip(longLived, []byte("still here")); err != nil {
		t.Errorf("roundTrip() through the old process = %v, want nil", err)
	}
	// The old process would run until its connection ends. SIGTERM ends the
	// process and its connection.
	g.signal(t, syscall.SIGTERM)
	g.awaitEnd(t)
	if err := roundTrip(longLived, []byte("?")); err == nil {
		t.Errorf("roundTrip() through the ended process = %v, want an error", err)
	}
	g.checkOpen(t, hello)
}

func TestHotRestart_NotifiesServiceManager(t *testing.T) {
	testutil.Cluster(t)
	expectStates := serviceManager(t)
	routes := filepath.Join(t.TempDir(), "routes.hcl")
	writeFile(t, routes, `route "*.server.dc2.wanfed" { to = ["127.0.0.1:1"] }`)
	g := startGatewayProcess(t, unchanged, "--listen", "127.0.0.1:0", "--routes", routes, "--shutdown-delay", "0s")
	expectStates("READY=1")
	g.signal(t, syscall.SIGHUP)
	expectStates("RELOADING=1", "READY=1")
	g.signal(t, syscall.SIGUSR2)
	pid := g.awaitReplaced(t, 1)
	expectStates("READY=1", "MAINPID="+strconv.Itoa(pid))
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	expectStates("STOPPING=1")
	<-g.ended
}
