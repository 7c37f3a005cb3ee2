// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"fmt"
	"testing"
)

func TestShelfIsBounded(t *testing.T) {
	var s shelf[int]
	if _, ok := s.take("id"); ok {
		t.Error("an empty one has something")
	}
	for i := range maxSessions + 10 {
		s.put(fmt.Sprint("owner", i), fmt.Sprint("id", i), i)
	}
	sizes := func(want int) {
		t.Helper()
		if s.order.Len() != want || len(s.owners) != want || len(s.ids) != want {
			t.Errorf("%d things, %d owners, %d ids; want %d", s.order.Len(), len(s.owners), len(s.ids), want)
		}
	}
	sizes(maxSessions)
	if _, ok := s.take("id9"); ok {
		t.Error("the oldest is still there")
	}
	if v, ok := s.take("id10"); !ok || v != 10 {
		t.Errorf("id10: %d, %v", v, ok)
	}
	if _, ok := s.take("id10"); ok {
		t.Error("taken twice")
	}
	s.put("owner11", "other", 7)
	if _, ok := s.take("id11"); ok {
		t.Error("an owner has two")
	}
	if v, ok := s.take("other"); !ok || v != 7 {
		t.Errorf("other: %d, %v", v, ok)
	}
	sizes(maxSessions - 2)
}
