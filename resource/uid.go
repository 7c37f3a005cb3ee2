// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"crypto/rand"
	"time"

	"github.com/oklog/ulid/v2"
)

// NewUID returns a uid for a new resource, in the form of a ULID. Its 26
// characters sort by the time of creation, to the millisecond. It has 80 random
// bits.
func NewUID() string { return ulid.MustNew(ulid.Now(), rand.Reader).String() }

// NewGeneration returns a generation for changed data, in the form of NewUID.
func NewGeneration() string { return NewUID() }

// TimeOf returns the time when NewUID or NewGeneration made id, to the
// millisecond. It returns the zero time for other texts.
func TimeOf(id string) time.Time {
	parsed, err := ulid.ParseStrict(id)
	if err != nil {
		return time.Time{}
	}
	return parsed.Timestamp()
}
