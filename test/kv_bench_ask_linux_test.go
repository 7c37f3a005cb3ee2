// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// kvTurns is how often those that are compared take turns.
const kvTurns = 8

// kvSettle is how long dc1 asks before anything is measured: who asks much
// moves to the leader.
const kvSettle = 3 * time.Second

// BenchmarkKVAcrossDatacenters reads a key of dc2 through dc1 and two gateways,
// and beside it, in turns, at a follower of dc2: as fresh as Consul's default,
// and as any server has it; all clients the same key, or each one of its own.
// Dc1 is answered by a follower at first, or by the leader; which of them it
// is, is chance otherwise.
func BenchmarkKVAcrossDatacenters(b *testing.B) {
	for _, by := range []struct {
		name  string
		leads bool
	}{{"follower", false}, {"leader", true}} {
		b.Run("answered-by-"+by.name, func(b *testing.B) {
			k := newKVBench(b, by.leads)
			k.settle(b)
			for _, run := range []struct {
				name          string
				clients, keys int
			}{{"clients=1", 1, 1}, {"clients=32", 32, 1}, {"clients=32/keys=32", 32, kvKeys}} {
				b.Run("default/"+run.name, func(b *testing.B) { k.compare(b, run.clients, run.keys, "dc=dc2", "") })
				b.Run("stale/"+run.name, func(b *testing.B) { k.compare(b, run.clients, run.keys, "stale&dc=dc2", "stale") })
			}
		})
	}
}

// asked is what requests to one server took.
type asked struct {
	took    []time.Duration
	elapsed time.Duration
	cpu     time.Duration // of all servers and gateways
}

func (a *asked) p50() float64    { return a.percentile(50) }
func (a *asked) perSec() float64 { return float64(len(a.took)) / a.elapsed.Seconds() }
func (a *asked) cpuEach() float64 {
	return float64(a.cpu.Microseconds()) / float64(max(1, len(a.took)))
}

func (a *asked) percentile(p int) float64 {
	slices.Sort(a.took)
	return float64(a.took[len(a.took)*p/100].Nanoseconds()) / 1e6
}

// compare sends b.N requests across, and as many to a follower. Turns that a
// busy machine disturbed are not left out.
func (k *kvBench) compare(b *testing.B, clients, keys int, across, follower string) {
	var far, near asked
	b.ResetTimer()
	for turn := range kvTurns {
		n := b.N/kvTurns + 1
		if turn%2 == 0 {
			k.ask(b, &far, k.far, across, clients, keys, n)
		}
		k.ask(b, &near, k.follower, follower, clients, keys, n)
		if turn%2 == 1 {
			k.ask(b, &far, k.far, across, clients, keys, n)
		}
	}
	b.StopTimer()
	if b.Failed() || len(far.took) == 0 || len(near.took) == 0 {
		return
	}
	b.ReportMetric(far.p50(), "across-p50-ms")
	b.ReportMetric(near.p50(), "follower-p50-ms")
	b.ReportMetric(far.percentile(99), "across-p99-ms")
	b.ReportMetric(near.percentile(99), "follower-p99-ms")
	b.ReportMetric(far.p50()-near.p50(), "more-ms")
	b.ReportMetric(far.perSec(), "across/s")
	b.ReportMetric(near.perSec(), "follower/s")
	b.ReportMetric(far.perSec()/near.perSec(), "rate-ratio")
	b.ReportMetric(far.cpuEach(), "across-cpu-us")
	b.ReportMetric(near.cpuEach(), "follower-cpu-us")
}

// settle asks across until everything is as it is going to be.
func (k *kvBench) settle(b testing.TB) {
	var unused asked
	for start := time.Now(); time.Since(start) < kvSettle && !b.Failed(); {
		k.ask(b, &unused, k.far, "dc=dc2", 1, 1, 100)
	}
}

// ask sends n requests over that many connections, each of which waits for an
// answer before it asks again, and asks for one of so many keys.
func (k *kvBench) ask(b testing.TB, to *asked, addr, query string, clients, keys, n int) {
	conns := make([]net.Conn, clients)
	for i := range conns {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		conns[i] = conn
	}
	var left atomic.Int64
	left.Store(int64(n))
	took := make([][]time.Duration, clients)
	var wg sync.WaitGroup
	start, cpu := time.Now(), k.cpu(b)
	for i, conn := range conns {
		wg.Go(func() {
			request := []byte("GET /v1/kv/" + kvKey(i%keys) + "?" + query + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
			r := bufio.NewReader(conn)
			for left.Add(-1) >= 0 {
				start := time.Now()
				_, err := conn.Write(request)
				if err == nil {
					err = readAnswer(r)
				}
				if err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(start))
			}
		})
	}
	wg.Wait()
	to.elapsed += time.Since(start)
	to.cpu += k.cpu(b) - cpu
	to.took = append(to.took, slices.Concat(took...)...)
}

// cpu is what all servers and gateways have used.
func (k *kvBench) cpu(b testing.TB) (sum time.Duration) {
	for _, p := range k.all {
		used, err := p.CPUTime()
		if err != nil {
			b.Error(err)
		}
		sum += used
	}
	return sum
}

// readAnswer reads one answer with the value "hello world".
func readAnswer(r *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		switch {
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")):
			return fmt.Errorf("answer %q", line)
		case bytes.HasPrefix(line, []byte("Content-Length: ")):
			if _, err := fmt.Sscanf(string(line[16:]), "%d", &length); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if !bytes.Contains(body, []byte(`"Value":"aGVsbG8gd29ybGQ="`)) {
		return fmt.Errorf("body %s", body)
	}
	return nil
}
