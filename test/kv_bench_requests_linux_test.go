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

// kvRounds is the number of rounds in which both sides are measured in turn.
const kvRounds = 8

// kvSettle is the warm-up time before the measurement.
const kvSettle = 3 * time.Second

// BenchmarkKVAcrossDatacenters reads keys of dc2 through dc1 and two gateways,
// and in turn from a follower of dc2: with default consistency and stale, with
// one key for all clients and with one key per client. The server of dc2 that
// serves dc1 is a follower or the leader; without this choice, chance would
// decide.
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
				b.Run("stale/"+run.name, func(b *testing.B) {
					k.compare(b, run.clients, run.keys, "stale&dc=dc2", "stale")
				})
			}
		})
	}
}

// samples holds the duration and cost of requests to one server.
type samples struct {
	took    []time.Duration
	elapsed time.Duration
	cpu     time.Duration // processor time of all servers and gateways
}

func (a *samples) p50() float64    { return a.percentile(50) }
func (a *samples) perSec() float64 { return float64(len(a.took)) / a.elapsed.Seconds() }
func (a *samples) cpuEach() float64 {
	return float64(a.cpu.Microseconds()) / float64(max(1, len(a.took)))
}

func (a *samples) percentile(p int) float64 {
	slices.Sort(a.took)
	return float64(a.took[len(a.took)*p/100].Nanoseconds()) / 1e6
}

// compare sends b.N requests to dc1 and as many to a follower of dc2.
func (k *kvBench) compare(b *testing.B, clients, keys int, across, follower string) {
	var far, near samples
	b.ResetTimer()
	for turn := range kvRounds {
		n := b.N/kvRounds + 1
		if turn%2 == 0 {
			k.request(b, &far, k.far, across, clients, keys, n)
		}
		k.request(b, &near, k.follower, follower, clients, keys, n)
		if turn%2 == 1 {
			k.request(b, &far, k.far, across, clients, keys, n)
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

// settle sends requests to dc1 for the warm-up time.
func (k *kvBench) settle(b testing.TB) {
	var unused samples
	for start := time.Now(); time.Since(start) < kvSettle && !b.Failed(); {
		k.request(b, &unused, k.far, "dc=dc2", 1, 1, 100)
	}
}

// request sends n requests over one connection per client. A client waits for
// each response. keys is the number of different keys.
func (k *kvBench) request(b testing.TB, to *samples, addr, query string, clients, keys, n int) {
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
					err = readResponse(r)
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

// cpu returns the processor time of all servers and gateways so far.
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

// readResponse reads one response with the value "hello world".
func readResponse(r *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		switch {
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")):
			return fmt.Errorf("status line %q, want 200", line)
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
		return fmt.Errorf("body %s, want the value hello world", body)
	}
	return nil
}
