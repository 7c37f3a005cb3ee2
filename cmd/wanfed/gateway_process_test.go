// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
)

// gatewayProcess is a gateway process, and the processes that replace it in hot
// restarts. All processes write to one log.
type gatewayProcess struct {
	first *os.Process
	ended chan struct{} // closed when the first process has ended
	log   string        // path
	addr  string        // address of the WAN listener, or of a standalone gateway
	admin string        // URL of the admin address
}

// startGatewayProcess starts a gateway as a process. change edits the command
// before the start.
func startGatewayProcess(t testing.TB, change func(*exec.Cmd), args ...string) *gatewayProcess {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	common := []string{"gateway", "--admin-addr", "127.0.0.1:0", "--" + subprocess.StopOnEOF}
	cmd := exec.Command(wanfedPath(t), append(common, args...)...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, out, out
	change(cmd)
	err = cmd.Start()
	stdin.Close()
	out.Close()
	if err != nil {
		t.Fatal(err)
	}
	g := &gatewayProcess{first: cmd.Process, ended: make(chan struct{}), log: log}
	go func() { cmd.Wait(); close(g.ended) }()
	t.Cleanup(func() {
		hold.Close() // ends all processes, because their stdin ends
		g.first.Kill()
		<-g.ended
	})
	g.addr = g.awaitLine(t, `(?m)^wanfed gateway.*(?:listening on|wan) ([^\s,]+)`, 1)[1]
	g.admin = g.awaitLine(t, `msg="admin address" .*addr=(\S+)`, 1)[1]
	return g
}

// unchanged does not edit the command of startGatewayProcess.
func unchanged(*exec.Cmd) {}

// signal sends a signal to the first process.
func (g *gatewayProcess) signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := g.first.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// awaitLine returns the submatches of the n-th line that matches.
func (g *gatewayProcess) awaitLine(t testing.TB, expr string, n int) []string {
	t.Helper()
	return awaitLine(t, expr, n, func() string { return g.output(t) })
}

// awaitLine returns the submatches of the n-th line of output that matches.
func awaitLine(t testing.TB, expr string, n int, output func() string) []string {
	t.Helper()
	re := regexp.MustCompile(expr)
	var all [][]string
	what := fmt.Sprintf("%d lines that match %s", n, expr)
	testutil.Await(t, 20*time.Second, what, func(context.Context) error {
		text := output()
		if all = re.FindAllStringSubmatch(text, n); len(all) == n {
			return nil
		}
		return fmt.Errorf("matching lines = %d, want %d; output:\n%s", len(all), n, text)
	})
	return all[n-1]
}

// awaitEnd waits for the end of the first process.
func (g *gatewayProcess) awaitEnd(t testing.TB) {
	t.Helper()
	select {
	case <-g.ended:
	case <-time.After(processTimeout):
		t.Errorf("first process after %v = running, want ended", processTimeout)
	}
}

// output returns the log of all processes.
func (g *gatewayProcess) output(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(g.log)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// open connects through the gateway to an echo upstream, sends hello with a new
// random, and checks that the same bytes come back.
func (g *gatewayProcess) open(hello []byte) (net.Conn, error) {
	c, err := net.DialTimeout("tcp", g.addr, 20*time.Second)
	if err != nil {
		return nil, err
	}
	c.SetDeadline(time.Now().Add(processTimeout))
	if err := roundTrip(c, withNewRandom(hello)); err != nil {
		c.Close()
		return nil, err
	}
	c.SetDeadline(time.Now().Add(5 * time.Minute))
	return c, nil
}

// checkOpen opens a connection and closes it.
func (g *gatewayProcess) checkOpen(t testing.TB, hello []byte) {
	t.Helper()
	c, err := g.open(hello)
	if err != nil {
		t.Fatalf("open() = %v, want a connection", err)
	}
	c.Close()
}

// roundTrip sends msg and receives it again.
func roundTrip(c net.Conn, msg []byte) error {
	if _, err := c.Write(msg); err != nil {
		return err
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, msg) {
		return fmt.Errorf("the upstream returned %x, want %x", got, msg)
	}
	return nil
}

// echoUpstream starts a server that sends all received bytes back.
func echoUpstream(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveConns(t, ln, 2*time.Minute, func(c net.Conn) { io.Copy(c, c) })
}

// serveConns serves and closes each connection of ln until the test ends.
func serveConns(t testing.TB, ln net.Listener, timeout time.Duration, serve func(net.Conn)) (addr string) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				c.SetDeadline(time.Now().Add(timeout))
				serve(c)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().String()
}

// withNewRandom returns a copy of a ClientHello with a new random. A gateway
// refuses a ClientHello that repeats the random of an open connection.
func withNewRandom(hello []byte) []byte {
	const random = 5 + 4 + 2 // after the headers of record and message, and the version
	hello = slices.Clone(hello)
	binary.BigEndian.PutUint64(hello[random:], rand.Uint64())
	return hello
}

// clientHello returns the ClientHello of a client that requests sni.
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

// runGateway runs a gateway process that must fail at its start.
func runGateway(t testing.TB, change func(*exec.Cmd), args ...string) (code int, stderr string) {
	t.Helper()
	cmd := exec.Command(wanfedPath(t), append([]string{"gateway"}, args...)...)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	var out strings.Builder
	cmd.Stderr = &out
	change(cmd)
	if err := cmd.Run(); err == nil {
		t.Errorf("wanfed gateway %q: exit status = 0, want another", args)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}
