// SPDX-License-Identifier: MPL-2.0

package state

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
)

func TestLock_Holders(t *testing.T) {
	daemon, operator := claimOf(1), Claim{Task: "web"}
	for name, test := range map[string]struct {
		holder string // run of the present lock
		claim  Claim
		run    string
		locked bool
	}{
		"operator, locked by an operator": {"", operator, "", true},
		"operator, locked by a run":       {"r1", operator, "", true},
		"run, locked by an operator":      {"", daemon, "r1", true},
		"run, locked by itself":           {"r1", daemon, "r1", true},
		"run, locked by an earlier run":   {"r0", daemon, "r1", false},
	} {
		s := newStore(t, newServer(t))
		mustClaim(t, s, 1)
		lock(t, s, daemon, "x", test.holder)
		err := s.Lock(t.Context(), test.claim, &pb.TaskStateLock{Id: "y", Run: test.run})
		if isLocked(err) != test.locked || !test.locked && err != nil {
			t.Errorf("%s: Lock() = %v, want locked: %v", name, err, test.locked)
		}
		if test.locked && (!strings.Contains(err.Error(), "wanfed task state unlock web x") ||
			!strings.Contains(err.Error(), map[bool]string{true: "root@host", false: "run r1"}[test.holder == ""])) {
			t.Errorf("%s: Lock() = %v, want the holder and the remedy", name, err)
		}
	}
}

func TestUnlock_ID(t *testing.T) {
	s := newStore(t, newServer(t))
	c := mustClaim(t, s, 1)
	lock(t, s, c, "x", "r1")
	if err := s.Lock(t.Context(), c, &pb.TaskStateLock{Id: "x", Run: "r1"}); err != nil {
		t.Errorf("Lock() of the same lock = %v, want nil", err)
	}
	if err := s.Unlock(t.Context(), Claim{Task: "web"}, "y"); !isLocked(err) {
		t.Errorf("Unlock(y) = %v, want a LockedError", err)
	}
	for range 2 {
		if err := s.Unlock(t.Context(), Claim{Task: "web"}, "x"); err != nil {
			t.Errorf("Unlock(x) = %v, want nil", err)
		}
	}
	lock(t, s, c, "z", "r2")
	for _, run := range []string{"r1", "r2"} {
		locked := run == "r1"
		if err := s.unlockRun(t.Context(), c, run); err != nil {
			t.Errorf("unlockRun(%s) = %v, want nil", run, err)
		}
		if st, err := s.Read(t.Context(), "web"); err != nil || (st.Lock != nil) != locked {
			t.Errorf("after unlockRun(%s): lock %v, %v, want locked: %v", run, st.GetLock(), err, locked)
		}
	}
}
