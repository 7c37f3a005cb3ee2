// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"slices"

	"github.com/wanfed/wanfed/gossip"
)

// raftState says how the Raft group is that this server knows, and whether that is well: who leads, of how many voters, and what
// keeps servers of the LAN pool apart. expect is the server's own bootstrap_expect.
func raftState(leader string, voters []string, expect int, lan []gossip.Member) (state, detail string) {
	running, up := 0, 0 // up: voters
	for _, m := range lan {
		if !m.Alive() {
			continue
		}
		running++
		if slices.Contains(voters, m.Name) {
			up++
		}
		if expect == 1 && m.Tags[tagExpect] == "1" && len(voters) > 0 && !slices.Contains(voters, m.Name) {
			return "split", fmt.Sprintf("%s was started to form a group alone, as were those of this one (%d): start it, or these, anew with an empty data dir "+
				"and --bootstrap-expect 3", m.Name, len(voters))
		}
	}
	if len(voters) == 0 && running < expect {
		return "no leader", fmt.Sprintf("in no group yet: waits for %d servers (bootstrap_expect), and %d of them run: start the others, with retry_join", expect, running)
	}
	if need := len(voters)/2 + 1; leader == "" && len(voters) > 0 && up < need {
		return "no leader", fmt.Sprintf("%d of %d voters alive, and %d have to be: start the others (see: wanfed members)", up, len(voters), need)
	}
	state, detail = "ok", fmt.Sprintf("%d voters", len(voters))
	if len(voters) == 1 {
		detail = "1 voter"
	}
	if leader == "" {
		state = "no leader"
	}
	return state, fmt.Sprintf("leader %s, %s", orNone(leader), detail)
}
