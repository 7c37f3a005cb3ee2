// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/test/lab/wan"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// envDuration returns the duration in an environment variable, or a default.
func envDuration(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return d
}

// TestStatusFaults makes faults of gateways, ports and servers of dc3. The
// status of every datacenter names the state, the cause and the remedy.
func TestStatusFaults(t *testing.T) { gatewayFaults(t, statusFault.status) }

// TestStatusFaults_Settings starts dc3 with wrong settings and certificates.
func TestStatusFaults_Settings(t *testing.T) {
	t.Parallel()
	settingsFaults(t, statusFault.status)
}

// slowClock builds wanfed with a wall clock that is ten minutes slow: the build
// replaces time.Now. Nothing in wanfed knows of it. The build compiles the
// standard library again, which takes minutes of processor time.
func slowClock(t *testing.T) (program string) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(source), now) != 1 {
		t.Fatalf("%s has another func Now: adapt this test", file)
	}
	dir := t.TempDir()
	program = filepath.Join(dir, "wanfed")
	slow, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: slow}})
	if err := errors.Join(err,
		os.WriteFile(slow, []byte(strings.Replace(string(source), now, now+"\tsec -= 600\n", 1)), 0o600),
		os.WriteFile(overlay, replace, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "build", "-overlay", overlay, "-o", program,
		"github.com/wanfed/wanfed/cmd/wanfed").CombinedOutput()
	if err != nil {
		t.Fatalf("build wanfed with a slow clock: %v: %s", err, out)
	}
	return program
}

// TestStatusFaults_Clock starts the server of dc3 with a clock that is ten
// minutes slow, so that the new certificates of the others are not valid yet. It
// runs only with WANFED_CLOCK=1, because of its build.
func TestStatusFaults_Clock(t *testing.T) {
	if os.Getenv("WANFED_CLOCK") == "" {
		t.Skip("WANFED_CLOCK is not set")
	}
	lab.NeedNFT(t)
	slow := slowClock(t)
	l, past := lab.New(t), time.Now().Add(-time.Hour)
	var err error
	if l.PKI, err = subprocess.NewPKIAt(filepath.Join(t.TempDir(), "pki"), "", past); err != nil {
		t.Fatal(err)
	}
	l.PKI.Now = time.Time{}
	dc1, dc2 := l.Add(1, 1), l.Add(1, 1)
	l.PKI.Now = past
	dc3 := l.Add(1, 1)
	dcs := l.Datacenters()
	for _, dc := range dcs {
		dc.Start()
	}
	testutil.Await(t, waitLimit, "federation", func(ctx context.Context) error { return allOK(ctx, dcs...) })
	srv, right := dc3.Servers[0], ""
	const cause, remedy = "is not valid", "check the clocks"
	statusFault{name: "clock 10 min slow", inject: func() {
		srv.Stop()
		right = l.Use(slow)
		srv.StartServer()
	}, heal: func() {
		srv.Stop()
		l.Use(right)
		srv.StartServer()
	}, healed: dcs, views: []view{
		{dc3, "dc1", api.HealthUnreachable, "a certificate between dc3 and dc1 " + cause, remedy},
		{dc3, "dc2", api.HealthUnreachable, "a certificate between dc3 and dc2 " + cause, remedy},
		{dc1, "dc3", api.HealthUnreachable, "a certificate between dc1 and dc3 " + cause, remedy},
		{dc2, "dc3", api.HealthUnreachable, "a certificate between dc2 and dc3 " + cause, remedy},
	}}.status(t)
}

// dialGateways connects from the server of each datacenter to all others, once a
// second, until ctx ends. Of two gateways with jitter, one is often late.
// It returns the number of connections.
func dialGateways(ctx context.Context, dcs []*lab.Datacenter) (dialed int) {
	var all sync.WaitGroup
	var n atomic.Int64
	dial := func(from, to *lab.Datacenter) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		raw, err := lab.DialIn(lab.One(from).NS)(ctx, "tcp", from.Gateways[0].LANAddr())
		if err != nil {
			return
		}
		defer raw.Close()
		// The server refuses the handshake, because the client has no certificate.
		name := tlsutil.ServerName("", to.Name, tlsutil.DefaultDomain)
		tls.Client(raw, &tls.Config{
			ServerName: name, InsecureSkipVerify: true, NextProtos: []string{wanfed.ProtoGRPC},
		}).HandshakeContext(ctx)
		n.Add(1)
	}
	for ctx.Err() == nil {
		for _, from := range dcs {
			for _, to := range dcs {
				if from != to {
					all.Go(func() { dial(from, to) })
				}
			}
		}
		backoff.Sleep(ctx, time.Second, nil)
	}
	all.Wait()
	return int(n.Load())
}

// TestStatusQuiet runs an idle federation over links with loss and jitter. No
// status may report a fault. WANFED_QUIET_TIME changes the duration.
func TestStatusQuiet(t *testing.T) {
	t.Parallel()
	quietTime := envDuration(t, "WANFED_QUIET_TIME", 20*time.Second)
	l := lab.NewWAN(t, wan.Link{Delay: 20 * time.Millisecond, Jitter: 200 * time.Millisecond, Loss: 0.01})
	for range 3 {
		l.Add(1, 2).Start()
	}
	testutil.Await(t, waitLimit, "federation", func(ctx context.Context) error { return allOK(ctx, l.Datacenters()...) })
	ctx, cancel := context.WithCancel(t.Context())
	dialed := make(chan int, 1)
	go func() { dialed <- dialGateways(ctx, l.Datacenters()) }()
	tick, checks := time.NewTicker(200*time.Millisecond), 0
	defer tick.Stop()
	for end := time.Now().Add(quietTime); time.Now().Before(end); checks++ {
		<-tick.C
		if err := allOK(t.Context(), l.Datacenters()...); err != nil {
			t.Errorf("false alarm after %d checks: %v", checks, err)
		}
	}
	cancel()
	n := <-dialed
	if n == 0 {
		t.Error("no connection between the datacenters was dialed")
	}
	t.Logf("%d checks and %d connections in %v", checks, n, quietTime)
}
