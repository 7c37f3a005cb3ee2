// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// many returns a store of one server with n small resources.
func many(b *testing.B, n int) *Store {
	b.Helper()
	s := single(b)
	for first := 0; first < n; first += 5000 {
		var ops []*pb.Op
		for i := first; i < min(n, first+5000); i++ {
			ops = append(ops, resource.PutOp(thing(b, fmt.Sprintf("thing-%07d", i), "some text"), ""))
		}
		if _, err := s.Commit(b.Context(), ops...); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

// benchSizes returns numbers of resources. If WANFED_BENCH is set, the list
// includes a million.
func benchSizes() []int {
	if os.Getenv("WANFED_BENCH") != "" {
		return []int{100_000, 1_000_000}
	}
	return []int{100_000}
}

func BenchmarkSave(b *testing.B) {
	for _, size := range benchSizes() {
		b.Run(fmt.Sprintf("resources=%d", size), func(b *testing.B) {
			s := many(b, size)
			for b.Loop() {
				saved, err := s.Snapshot(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				n, err := saved.WriteTo(io.Discard)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(n)
			}
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	for _, size := range benchSizes() {
		b.Run(fmt.Sprintf("resources=%d", size), func(b *testing.B) {
			s := many(b, size)
			m, data := saveData(b, s)
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := s.Restore(b.Context(), m, bytes.NewReader(data)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
