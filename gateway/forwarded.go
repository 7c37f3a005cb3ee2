// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"hash/maphash"
	"sync"
)

// helloSum is the checksum of the field "random" of a ClientHello.
type helloSum uint64

// forwardedHellos detects forwarding loops. It contains the checksum of the
// random in the ClientHello of each open connection. A client sends a new
// random with each connection. If a random arrives while it is in the set,
// other gateways have therefore sent the connection back to this gateway. The
// limit of connections bounds the set. A connection costs about 20 bytes.
type forwardedHellos struct {
	seed maphash.Seed

	mu   sync.Mutex
	sums map[helloSum]struct{}
}

func newForwardedHellos() *forwardedHellos {
	return &forwardedHellos{seed: maphash.MakeSeed(), sums: map[helloSum]struct{}{}}
}

// add adds random to the set and returns its checksum, the argument of remove.
// It returns 0 if random is in the set already.
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
