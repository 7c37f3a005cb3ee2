// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"bytes"
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	resourcetest.Run(t, func(t *testing.T) resourcetest.Target {
		s := New()
		t.Cleanup(func() { s.Close() })
		return target(s)
	})
}

// target restarts s as a program that keeps its snapshot would.
func target(s *Store) resourcetest.Target {
	return resourcetest.Target{
		Backend: s,
		Snapshot: func(context.Context) (func(context.Context) error, error) {
			var b bytes.Buffer
			err := s.WriteSnapshot(&b)
			return func(context.Context) error { return s.Restore(&b) }, err
		},
		Restart: func(t *testing.T) resourcetest.Target {
			data := snapshotOf(t, s)
			s.Close()
			next := New()
			t.Cleanup(func() { next.Close() })
			if err := next.Restore(bytes.NewReader(data)); err != nil {
				t.Fatal(err)
			}
			return target(next)
		},
	}
}
