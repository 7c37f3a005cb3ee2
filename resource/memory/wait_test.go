// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"testing"
	"testing/synctest"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// TestWaitersSleep: with goroutines in Wait and Next, nothing runs until a write to their type.
func TestWaitersSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		w := open(t, s)
		drain(t, w)
		woken := 0
		errc := make(chan error, 2)
		go func() {
			err := s.Wait(t.Context(), resource.Query{Type: testType}, 1)
			woken++
			errc <- err
		}()
		go func() { _, err := w.Next(t.Context()); errc <- err }()
		synctest.Wait()
		other := thing(t, "x")
		other.Id.Type = &pb.Type{Group: "test", GroupVersion: "v1", Kind: "Other"}
		if _, err := s.Commit(t.Context(), resource.PutOp(other, "")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if woken != 0 || len(errc) != 0 {
			t.Error("another type's write ended a wait")
		}
		put(t, s, "x")
		for range 2 {
			if err := <-errc; err != nil {
				t.Error(err)
			}
		}
		s.Close()
	})
}
