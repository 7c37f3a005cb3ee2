// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/resource"
)

// BenchmarkFanout writes while watches wait in Next. All watches are for one
// name, or each watch is for another name. The benchmark reports the time of a
// write, the latency of the events, and the memory of a watch.
func BenchmarkFanout(b *testing.B) {
	for _, same := range []bool{true, false} {
		for _, n := range []int{1, 1000, 10_000} {
			b.Run(fmt.Sprintf("same=%t/watches=%d", same, n), func(b *testing.B) { fanout(b, same, n) })
		}
	}
}

func fanout(b *testing.B, same bool, n int) {
	s := New()
	defer s.Close()
	put(b, s, "n0")
	before := heap()
	var followers, received sync.WaitGroup
	var sent atomic.Int64
	lags := make([][]time.Duration, n)
	start := time.Now()
	for i := range n {
		name := "n0"
		if !same {
			name = "n" + strconv.Itoa(i)
		}
		w, err := s.Watch(resource.Query{Type: testType, Name: name})
		if err != nil {
			b.Fatal(err)
		}
		followers.Go(func() {
			defer w.Close()
			live := false
			for {
				ev, err := w.Next(b.Context())
				if err != nil {
					return
				}
				if live {
					lags[i] = append(lags[i], time.Since(start)-time.Duration(sent.Load()))
					received.Done()
				}
				live = live || ev.GetEndOfSnapshot() != nil
			}
		})
	}
	each := (float64(heap()) - float64(before)) / float64(n)
	expect := 1
	if same {
		expect = n
	}
	var writing time.Duration
	stored, _, _ := s.List(b.Context(), resource.Strong, resource.Query{Type: testType, Name: "n0"})
	b.ResetTimer()
	for range b.N {
		received.Add(expect)
		at := time.Since(start)
		sent.Store(int64(at))
		if _, err := s.Commit(b.Context(), resource.PutOp(stored[0], resource.AnyVersion)); err != nil {
			b.Fatal(err)
		}
		writing += time.Since(start) - at
		received.Wait()
	}
	b.StopTimer()
	s.Close()
	followers.Wait()
	all := slices.Concat(lags...)
	slices.Sort(all)
	b.ReportMetric(float64(writing.Nanoseconds())/float64(b.N), "ns/write")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(each, "B/watch")
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
