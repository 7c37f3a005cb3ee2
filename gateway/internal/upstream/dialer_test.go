// SPDX-License-Identifier: MPL-2.0

package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/gateway/internal/tlsrecord"
	"github.com/wanfed/wanfed/internal/testutil"
)

// fakeNet has addresses that accept connections late or never, in fake time.
type fakeNet struct {
	began  time.Time
	answer map[string]time.Duration // until accepted; negative: until refused; absent: no response

	mu  sync.Mutex
	log []string // the address and time of each dial
}

func (f *fakeNet) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	f.mu.Lock()
	f.log = append(f.log, fmt.Sprintf("%s@%v", addr, time.Since(f.began)))
	f.mu.Unlock()
	d, ok := f.answer[addr]
	if !ok {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	select {
	case <-time.After(max(d, -d)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if d < 0 {
		return nil, errors.New("refused")
	}
	c, other := net.Pipe()
	other.Close()
	return c, nil
}

func TestDialAny_TriesNextAddress(t *testing.T) {
	tests := []struct {
		name   string
		answer map[string]time.Duration
		dials  []string
		took   time.Duration
		err    string // part of the error; empty: none
		after  string // order of the addresses in the next selection
	}{
		{"first works", map[string]time.Duration{"a": 30 * ms}, []string{"a@0s"}, 30 * ms, "", "abc"},
		{"first refuses: next at once", map[string]time.Duration{"a": -1 * ms, "b": 1 * ms}, []string{"a@0s", "b@1ms"},
			2 * ms, "", "bca"},
		{"first silent: next after the delay", map[string]time.Duration{"b": 10 * ms}, []string{"a@0s", "b@250ms"},
			260 * ms, "", "bca"},
		{"first slow, and faster than the second", map[string]time.Duration{"a": 300 * ms, "b": 100 * ms},
			[]string{"a@0s", "b@250ms"}, 300 * ms, "", "abc"},
		{"two silent", map[string]time.Duration{"c": 0}, []string{"a@0s", "b@250ms", "c@500ms"}, 500 * ms, "", "cab"},
		{"all refuse", map[string]time.Duration{"a": -2 * ms, "b": -1 * ms, "c": -1 * ms},
			[]string{"a@0s", "b@2ms", "c@3ms"}, 4 * ms,
			"dial a: refused\ndial b: refused\ndial c: refused", "abc"},
		{"all silent", nil, []string{"a@0s", "b@250ms", "c@500ms"}, 5500 * ms,
			"dial c: context deadline exceeded", "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				f := &fakeNet{began: time.Now(), answer: tt.answer}
				d := &Dialer{Dial: f.dial, Timeout: 5 * time.Second, AttemptDelay: 250 * ms, EjectFor: time.Minute}
				addrs := []string{"a", "b", "c"}
				won, _, err := d.DialAny(t.Context(), addrs, InOrder, Request{})
				took := time.Since(f.began)
				if err == nil {
					won.Conn.Close()
				}
				d.Wait()
				if took != tt.took {
					t.Errorf("DialAny() took %v, want %v", took, tt.took)
				}
				if diff := cmp.Diff(tt.dials, f.log); diff != "" {
					t.Errorf("dials (-want +got):\n%s", diff)
				}
				if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("DialAny() = %v, want %q", err, tt.err)
				}
				got, probe := d.order(addrs, InOrder, time.Now())
				if strings.Join(got, "") != tt.after || probe != "" {
					t.Errorf("next order = %s, probe %q; want %s and none", got, probe, tt.after)
				}
			})
		})
	}
}

func TestDialAny_EndsWithContext(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := &fakeNet{began: time.Now()}
		d := &Dialer{Dial: f.dial, Timeout: 5 * time.Second, AttemptDelay: time.Hour, EjectFor: time.Minute}
		ctx, cancel := context.WithTimeout(t.Context(), 7*ms)
		defer cancel()
		_, _, err := d.DialAny(ctx, []string{"a"}, 0, Request{})
		if took := time.Since(f.began); !errors.Is(err, context.DeadlineExceeded) || took != 7*ms {
			t.Errorf("DialAny() = %v after %v, want %v after 7ms", err, took, context.DeadlineExceeded)
		}
		d.Wait()
	})
}

func TestDialFirst(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		f := &fakeNet{began: time.Now(), answer: map[string]time.Duration{"a": -1, "b": 0}}
		d := &Dialer{Dial: f.dial, Timeout: time.Second, AttemptDelay: time.Second, EjectFor: time.Minute}
		for range 2 {
			c, addr, err := d.DialFirst(t.Context(), []string{"a", "b"})
			if err != nil || addr != "b" {
				t.Fatalf("DialFirst() = %q, %v; want b", addr, err)
			}
			c.Close()
		}
		d.Wait()
		if len(f.log) != 3 { // a, b and, in the second call, b alone
			t.Errorf("dials = %v, want 3", f.log)
		}
		if _, _, err := d.DialFirst(t.Context(), []string{"a"}); err == nil || err.Error() != "dial a: refused" {
			t.Errorf("DialFirst() = %v, want dial a: refused", err)
		}
	})
}

func TestDialAny_StartSelectsAmongEqualAddresses(t *testing.T) {
	f := &fakeNet{began: time.Now(), answer: map[string]time.Duration{"a": 0, "b": 0, "c": 0}}
	d := &Dialer{Dial: f.dial, Timeout: time.Second, AttemptDelay: time.Second}
	for _, ordered := range []bool{false, true} {
		f.log = nil
		for n := range 9 {
			start := n % 3
			if ordered {
				start = InOrder
			}
			won, _, err := d.DialAny(t.Context(), []string{"a", "b", "c"}, start, Request{})
			if err != nil {
				t.Fatal(err)
			}
			won.Conn.Close()
		}
		d.Wait()
		count := map[byte]int{}
		for _, l := range f.log {
			count[l[0]]++
		}
		want := map[byte]int{'a': 3, 'b': 3, 'c': 3}
		if ordered {
			want = map[byte]int{'a': 9}
		}
		if diff := cmp.Diff(want, count); diff != "" {
			t.Errorf("ordered %v, dials (-want +got):\n%s", ordered, diff)
		}
	}
}

// helloNet has addresses that answer a ClientHello late or never, in fake time.
type helloNet struct {
	mu   sync.Mutex
	took map[string]time.Duration // until the answer; absent: no answer
	log  []string                 // the address of each dial
}

func (n *helloNet) dialer() *Dialer {
	return &Dialer{Dial: n.dial, Timeout: 5 * time.Second, AttemptDelay: 250 * ms, EjectFor: 8 * time.Second}
}

func (n *helloNet) dial(_ context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	n.log = append(n.log, addr)
	took, ok := n.took[addr]
	n.mu.Unlock()
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		server.Read(make([]byte, 100))
		if ok {
			time.Sleep(took)
			server.Write([]byte{22, 3, 3, 0, 1, addr[0]})
		}
		io.Copy(io.Discard, server)
	}()
	return client, nil
}

func (n *helloNet) set(addr string, took time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.took[addr] = took
}

// connect returns the address that answered, the time until then, and the
// addresses that were dialed.
func (n *helloNet) connect(t *testing.T, d *Dialer, req Request, addrs ...string) (string, time.Duration, []string) {
	t.Helper()
	n.mu.Lock()
	n.log = nil
	n.mu.Unlock()
	req.Hello = Hello{Bytes: []byte("hello")}
	began := time.Now()
	won, _, err := d.DialAny(t.Context(), addrs, InOrder, req)
	if err != nil {
		t.Fatal(err)
	}
	if won.Answer[5] != won.Addr[0] {
		t.Errorf("DialAny() = address %s with the answer of %s, want the answer of that address", won.Addr, won.Answer[5:])
	}
	won.Conn.Close()
	took := time.Since(began)
	n.mu.Lock()
	defer n.mu.Unlock()
	return won.Addr, took, n.log
}

// A server that answers in 5 ms later answers in 100 ms. It must be in use
// again after the first pause.
func TestDialAny_SlowServerReturns(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		n := &helloNet{took: map[string]time.Duration{"a": 5 * ms, "b": 5 * ms}}
		d := n.dialer()
		for range 20 {
			n.connect(t, d, Request{}, "a", "b")
		}
		n.set("a", 100*ms)
		if addr, took, _ := n.connect(t, d, Request{}, "a", "b"); addr != "b" || took < 55*ms || took > 61*ms {
			t.Errorf("DialAny() = %s after %v, want b after 55ms to 61ms", addr, took)
		}
		if addr, _, log := n.connect(t, d, Request{}, "a", "b"); addr != "b" || !slices.Equal(log, []string{"b"}) {
			t.Errorf("DialAny() = %s with dials to %s, want b with a dial to b alone", addr, log)
		}
		time.Sleep(time.Second) // the next connection probes a
		if addr, _, log := n.connect(t, d, Request{}, "a", "b"); addr != "b" || len(log) != 2 {
			t.Errorf("DialAny() = %s with dials to %s, want b with dials to a and b", addr, log)
		}
		time.Sleep(150 * ms)
		for range 3 { // the delay of a is longer now
			if addr, took, _ := n.connect(t, d, Request{}, "a", "b"); addr != "a" || took != 100*ms {
				t.Errorf("DialAny() = %s after %v, want a after 100ms", addr, took)
			}
		}
		d.Wait()
	})
}

// One of two addresses is silent and later recovers. Only the first of 100
// clients may wait for this address.
func TestDialAny_OneClientWaitsForSilentAddress(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		n := &helloNet{took: map[string]time.Duration{"b": 5 * ms}}
		d := n.dialer()
		waited, dialed := 0, 0
		for i := range 100 {
			if i == 50 {
				n.set("a", 5*ms)
			}
			addr, took, log := n.connect(t, d, Request{}, "a", "b")
			if took > 5*ms {
				waited++
			}
			if dialed += len(log); i == 99 && addr != "a" {
				t.Errorf("last DialAny() = %s, want a", addr)
			}
			time.Sleep(200 * ms)
		}
		d.Wait()
		if waited != 1 || dialed > 108 {
			t.Errorf("clients that waited = %d, dials = %d; want 1 and at most 108", waited, dialed)
		}
	})
}

func TestDialAny_NewAddresses(t *testing.T) {
	t.Run("while the known ones are silent", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			n := &helloNet{took: map[string]time.Duration{"c": 5 * ms}}
			d := n.dialer()
			began := time.Now()
			req := Request{NewAddrs: func() []string {
				if time.Since(began) < 600*ms {
					return nil
				}
				return []string{"b", "c"}
			}}
			if addr, took, _ := n.connect(t, d, req, "a", "b"); addr != "c" || took != 755*ms {
				t.Errorf("DialAny() = %s after %v, want c after 755ms", addr, took)
			}
			d.Wait()
		})
	})
	t.Run("when the known ones have failed", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			f := &fakeNet{began: time.Now(), answer: map[string]time.Duration{"a": -3 * ms, "b": 1 * ms}}
			d := &Dialer{Dial: f.dial, Timeout: time.Second, AttemptDelay: 250 * ms}
			won, failed, err := d.DialAny(t.Context(), []string{"a"}, 0,
				Request{NewAddrs: func() []string { return []string{"b"} }})
			if err != nil || failed != 1 {
				t.Fatalf("DialAny() = %d failures, %v; want 1 and nil", failed, err)
			}
			won.Conn.Close()
			if diff := cmp.Diff([]string{"a@0s", "b@3ms"}, f.log); diff != "" {
				t.Errorf("dials (-want +got):\n%s", diff)
			}
			d.Wait()
		})
	})
	t.Run("are bounded", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			f := &fakeNet{began: time.Now()}
			d := &Dialer{Dial: f.dial, Timeout: 5 * time.Second, AttemptDelay: 10 * ms}
			next := byte('b')
			newAddrs := func() []string {
				next++
				return []string{string(next)}
			}
			if _, _, err := d.DialAny(t.Context(), []string{"a"}, 0, Request{NewAddrs: newAddrs}); err == nil {
				t.Error("DialAny() = nil, want an error: no address answers")
			}
			d.Wait()
			if n := len(f.log); n != 1+maxNewAddrs {
				t.Errorf("dials = %d, want %d", n, 1+maxNewAddrs)
			}
		})
	})
}

// scriptConn is a connection whose peer has sent everything.
type scriptConn struct {
	net.Conn
	in io.Reader
}

func (c *scriptConn) Read(b []byte) (int, error) { return c.in.Read(b) }

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte{21, 3, 3, 0, 2, 2, 112})
	f.Add([]byte{22, 3, 1, 0, 5, 2})
	f.Add([]byte{22, 3, 3, 0x41, 0})
	f.Add([]byte("HTTP/1.1 400"))
	f.Add(append([]byte{23, 3, 3, 0, 1, 0}, make([]byte, 3000)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readAnswer(&scriptConn{in: bytes.NewReader(b)})
		switch {
		case err != nil:
			if got != nil {
				t.Errorf("readAnswer() = %d bytes, %v; want none with an error", len(got), err)
			}
		case !bytes.HasPrefix(b, got):
			t.Errorf("readAnswer() = % x, want the first bytes of % x", got, b)
		default:
			if size, err := tlsrecord.Size(got); err != nil || size < tlsrecord.HeaderSize || size > len(got) {
				t.Errorf("readAnswer() = %d bytes with a record of %d bytes, %v; want a whole record",
					len(got), size, err)
			}
		}
		if len(got) > tlsrecord.MaxSize {
			t.Errorf("readAnswer() = %d bytes, want at most %d", len(got), tlsrecord.MaxSize)
		}
		if len(b) == 0 && !errors.Is(err, ErrClosed) {
			t.Errorf("readAnswer() of nothing = %v, want %v", err, ErrClosed)
		}
	})
}
