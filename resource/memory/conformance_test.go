// SPDX-License-Identifier: MPL-2.0

package memory_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestConformance(t *testing.T) {
	resourcetest.Run(t, func(t *testing.T) resourcetest.Target { return target(t, resourcetest.NewStore()) })
}

// target returns a conformance target for s. Restart restores a snapshot of s
// in a new store.
func target(t *testing.T, s *resourcetest.Store) resourcetest.Target {
	t.Cleanup(s.Close)
	return resourcetest.Target{
		Backend: s,
		Snapshot: func(context.Context) (func(context.Context) error, error) {
			var b bytes.Buffer
			err := s.WriteSnapshot(&b)
			return func(context.Context) error { return s.Restore(&b) }, err
		},
		Restart: func(t *testing.T) resourcetest.Target {
			var b bytes.Buffer
			if err := s.WriteSnapshot(&b); err != nil {
				t.Fatal(err)
			}
			s.Close()
			next := resourcetest.NewStore()
			if err := next.Restore(&b); err != nil {
				t.Fatal(err)
			}
			return target(t, next)
		},
	}
}
