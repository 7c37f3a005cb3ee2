// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/wanfed/wanfed/resource"
)

func BenchmarkCommit(b *testing.B) {
	for _, servers := range []string{"single", "group"} {
		for _, writers := range []int{1, 16, 256} {
			b.Run(servers+"/writers="+sprint(writers), func(b *testing.B) {
				var s *Store
				if servers == "single" {
					s = single(b)
				} else {
					s = awaitLeader(b, values(group(b, loopback(b), nil))...)
				}
				var remaining atomic.Int64
				remaining.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ResetTimer()
				for w := range writers {
					wg.Go(func() {
						r := thing(b, "w"+sprint(w), "x")
						for remaining.Add(-1) >= 0 {
							if _, err := s.Commit(b.Context(), resource.PutOp(r, resource.AnyVersion)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
			})
		}
	}
}

func BenchmarkStrongRead(b *testing.B) {
	s := awaitLeader(b, values(group(b, loopback(b), nil))...)
	r := put(b, s, "x", "1")
	b.ResetTimer()
	for range b.N {
		if _, err := s.Read(b.Context(), resource.Strong, r.Id); err != nil {
			b.Fatal(err)
		}
	}
}
