// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen runs the servers until the test ends.
func listen(t *testing.T) (*Servers, string) {
	t.Helper()
	dir := t.TempDir()
	if err := MakeCert(dir); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(dir, "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v, want nil", err)
		}
	})
	return s, dir
}

func TestRun_NoProxy(t *testing.T) {
	s, dir := listen(t)
	for name, test := range map[string]struct {
		spec Spec
		want []string
	}{
		"bulk":        {Spec{Kind: Bulk, Conns: 3}, []string{MBPerS, CPUPerGB}},
		"bulk TLS":    {Spec{Kind: Bulk, Conns: 2, TLS: true}, []string{MBPerS}},
		"connect":     {Spec{Kind: Connect, Conns: 5}, []string{ConnPerS, P50, P99}},
		"connect TLS": {Spec{Kind: Connect, Conns: 3, TLS: true}, []string{ConnPerS, P50, P99}},
		"ping":        {Spec{Kind: Ping, Conns: 3}, []string{P50, P99}},
		"paced ping":  {Spec{Kind: Ping, Conns: 3, Interval: 5 * time.Millisecond}, []string{P50, P99}},
		"idle":        {Spec{Kind: Idle, Conns: 50, Settle: time.Millisecond}, []string{Held, FDsPerConn}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := test.spec
			spec.Warmup, spec.Duration = 20*time.Millisecond, 100*time.Millisecond
			spec.CertDir, spec.PIDs = dir, []int{os.Getpid()}
			if spec.Addr = s.RawAddr; spec.TLS {
				spec.Addr = s.TLSAddr
			}
			f, err := Run(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range test.want {
				if f[name] <= 0 {
					t.Errorf("Run(): figure %s = %v, want > 0 (all: %v)", name, f[name], f)
				}
			}
		})
	}
}

func TestRun_NoServer(t *testing.T) {
	s, dir := listen(t)
	for _, spec := range []Spec{
		{Kind: Bulk, Addr: s.TLSAddr}, // closes the connection, because the hello is not followed by TLS
		{Kind: Connect, Addr: "127.0.0.1:1"},
		{Kind: Connect, Addr: "127.0.0.1:1", TLS: true},
		{Kind: Ping, Addr: "127.0.0.1:1"},
		{Kind: Idle, Addr: "127.0.0.1:1"},
	} {
		spec.Conns, spec.Warmup, spec.Duration, spec.CertDir = 2, time.Millisecond, 50*time.Millisecond, dir
		if f, err := Run(t.Context(), spec); err == nil {
			t.Errorf("Run(%+v) = %v, nil; want an error", spec, f)
		}
	}
}

func TestRun_InvalidSpec(t *testing.T) {
	_, err := Run(t.Context(), Spec{Kind: Stall, TLS: true})
	for _, want := range []string{
		"no proxy address", "one connection", "must be positive", "does not support TLS", "connection rate",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() = %v, want an error with %q", err, want)
		}
	}
}

func TestRequestAfterHello(t *testing.T) {
	hello, err := recordHello(RawName)
	if err != nil {
		t.Fatal(err)
	}
	whole := append(append([]byte(nil), hello...), request(opEcho)...)
	for n := 1; n < len(whole); n++ {
		if req, ok := requestAfterHello(whole[:n]); req != nil || !ok {
			t.Fatalf("requestAfterHello(%d of %d bytes) = %v, %v, want nil, true", n, len(whole), req, ok)
		}
	}
	if req, ok := requestAfterHello(whole); !ok || len(req) != requestSize || req[0] != opEcho {
		t.Errorf("requestAfterHello(hello and request) = %q, %v, want the request", req, ok)
	}
	if _, ok := requestAfterHello(append(whole, 'x')); ok {
		t.Error("requestAfterHello(hello, request and a byte) = true, want false")
	}
	if _, ok := requestAfterHello([]byte("GET / HTTP/1.1")); ok {
		t.Error("requestAfterHello(HTTP request) = true, want false")
	}
}

func TestRateTask_Tick(t *testing.T) {
	var due []time.Time
	p := newRateTask(100, 5, func(at time.Time) { due = append(due, at) })
	begin := p.next
	if next := p.tick(begin.Add(25 * time.Millisecond)); next != begin.Add(30*time.Millisecond) || len(due) != 3 {
		t.Errorf("tick(25ms): %d calls, next at %v, want 3 calls, next at 30ms", len(due), next.Sub(begin))
	}
	if p.tick(begin.Add(time.Second)); len(due) != 5 || due[4] != begin.Add(40*time.Millisecond) {
		t.Errorf("tick(1s): calls at %v, want 5, the last at 40ms", due)
	}
}
