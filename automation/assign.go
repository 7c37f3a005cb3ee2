// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"crypto/sha256"
	"encoding/binary"
)

// preferred returns the daemon that should run a task, of the ids of those that
// can. It is "" if there is none. Every daemon computes the same result. When a
// daemon joins or leaves, only the tasks that it gets or had move (rendezvous
// hashing).
func preferred(task string, ids []string) (best string) {
	var highest uint64
	for _, id := range ids {
		sum := sha256.Sum256([]byte(task + "\x00" + id))
		weight := binary.BigEndian.Uint64(sum[:])
		if best == "" || weight > highest || weight == highest && id < best {
			best, highest = id, weight
		}
	}
	return best
}
