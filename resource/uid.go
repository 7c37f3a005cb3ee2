// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"crypto/rand"
	"encoding/binary"
	"strings"
	"time"
)

// crockford is Crockford's base 32 alphabet: no I, L, O, U.
const crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// NewUID returns a uid for a new resource: 26 characters that sort by time of creation to the millisecond and hold 80
// random bits, in the form of a ULID.
func NewUID() string { return newULID(time.Now()) }

// NewGeneration returns a generation for changed data, in the form of NewUID.
func NewGeneration() string { return newULID(time.Now()) }

// newULID writes 48 bits of milliseconds and 80 random bits as 26 digits of 5 bits; the first has only 3.
func newULID(now time.Time) string {
	var random [10]byte
	rand.Read(random[:]) // never fails: crypto/rand
	ms := uint64(now.UnixMilli())
	hi := ms<<16 | uint64(binary.BigEndian.Uint16(random[:2]))
	lo := binary.BigEndian.Uint64(random[2:])

	var out [26]byte
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = crockford[lo&31]
		lo = lo>>5 | hi<<59
		hi >>= 5
	}
	return string(out[:])
}

// TimeOf returns when a uid or generation was made, to the millisecond; the zero time if it is none of NewUID's.
func TimeOf(ulid string) time.Time {
	if len(ulid) != 26 {
		return time.Time{}
	}
	ms := int64(0)
	for _, c := range []byte(ulid[:10]) {
		digit := strings.IndexByte(crockford, c)
		if digit < 0 {
			return time.Time{}
		}
		ms = ms<<5 | int64(digit)
	}
	return time.UnixMilli(ms)
}
