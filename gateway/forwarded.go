// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"hash/maphash"
	"sync"
)

// helloSum is the checksum of the random of a ClientHello.
type helloSum uint64

// forwardedHellos contains the ClientHellos of the open connections. A
// ClientHello that arrives again has come back through other gateways: a client
// sends another random on each connection. The limit of connections bounds the
// set. A connection costs about 20 bytes.
type forwardedHellos struct {
	seed maphash.Seed

	mu   sync.Mutex
	sums map[helloSum]struct{}
}

func newForwardedHellos() *forwardedHellos {
	return &forwardedHellos{seed: maphash.MakeSeed(), sums: map[helloSum]struct{}{}}
}

// add returns the checksum for remove. It returns 0 if the set has random.
func (f *forwardedHellos) add(random []byte) helloSum {
	sum := max(helloSum(maphash.Bytes(f.seed, random)), 1)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, found := f.sums[sum]; found {
		return 0
	}
	f.sums[sum] = struct{}{}
	return sum
}

func (f *forwardedHellos) remove(sum helloSum) {
	if sum == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sums, sum)
}
