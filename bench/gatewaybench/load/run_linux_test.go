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
			t.Errorf("serve: %v", err)
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
			spec.Warmup, spec.Duration, spec.CertDir, spec.PIDs = 20*time.Millisecond, 100*time.Millisecond, dir, []int{os.Getpid()}
			if spec.Addr = s.RawAddr; spec.TLS {
				spec.Addr = s.TLSAddr
			}
			f, err := Run(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range test.want {
				if f[name] <= 0 {
					t.Errorf("%s: %v of %v", name, f[name], f)
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
			t.Errorf("%+v: no error, figures %v", spec, f)
		}
	}
}

func TestRun_InvalidSpec(t *testing.T) {
	_, err := Run(t.Context(), Spec{Kind: Stall, TLS: true})
	for _, want := range []string{"no address", "one connection", "must be positive", "no stall over TLS", "rate of connections"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
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
			t.Fatalf("%d of %d bytes: %v, %v", n, len(whole), req, ok)
		}
	}
	if req, ok := requestAfterHello(whole); !ok || len(req) != requestSize || req[0] != opEcho {
		t.Errorf("got %q, %v", req, ok)
	}
	if _, ok := requestAfterHello(append(whole, 'x')); ok {
		t.Error("more than a request is taken for one")
	}
	if _, ok := requestAfterHello([]byte("GET / HTTP/1.1")); ok {
		t.Error("HTTP is taken for a hello")
	}
}

func TestRateTask_Tick(t *testing.T) {
	var due []time.Time
	p := newRateTask(100, 5, func(at time.Time) { due = append(due, at) })
	begin := p.next
	if next := p.tick(begin.Add(25 * time.Millisecond)); next != begin.Add(30*time.Millisecond) || len(due) != 3 {
		t.Errorf("after 25 ms: %d done, next in %v", len(due), next.Sub(begin))
	}
	if p.tick(begin.Add(time.Second)); len(due) != 5 || due[4] != begin.Add(40*time.Millisecond) {
		t.Errorf("after a second: %v", due)
	}
}
