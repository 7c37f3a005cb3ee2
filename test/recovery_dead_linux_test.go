// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestDeadDatacenter_IsHarmlessAndDeletable has federation states of two
// unreachable datacenters: dc9, which never existed, and dc3, which is killed.
// The others must not become slower. An operator can delete the states: at once
// with --force, and without it once all members of the datacenter have failed.
func TestDeadDatacenter_IsHarmlessAndDeletable(t *testing.T) {
	l := lab.New(t)
	dc1, dc2, dc3 := l.Add(1, 1), l.Add(1, 1), l.Add(1, 1)
	dc1.Start()
	writeNumbers(t, l, lab.One(dc1), 1)
	dc2.Start()
	dc3.Start()
	awaitWhole(t, l, promptly, "join next to a dead datacenter")
	dc3.Kill()
	// Long enough for dials to fail, shorter than a probe: memberlist does not
	// send suspected members to a new one.
	outage(t, 2*time.Second)
	lab.One(dc2).Kill()
	lab.One(dc2).StartServer()
	awaitWhole(t, l, promptly, "restart next to two dead datacenters")
	steady(t, lab.One(dc1), lab.One(dc2))

	// A delete is refused while the datacenter is alive. With --force it
	// succeeds, and dc2 writes its state again.
	if out, err := deleteState(t, l, dc2, "dc2"); err == nil || !strings.Contains(out, "is alive in the WAN pool") {
		t.Errorf("delete of a live datacenter = %v, %s; want it refused", err, out)
	}
	if out, err := deleteState(t, l, dc2, "dc2", "--force"); err != nil {
		t.Errorf("delete with --force = %v, %s; want nil", err, out)
	}
	awaitWhole(t, l, promptly, "deleted state of a living datacenter written again")

	// Without --force, a dead datacenter can be deleted.
	if out, err := deleteState(t, l, dc2, "dc9"); err != nil {
		t.Errorf("delete of a datacenter that never joined = %v, %s; want nil", err, out)
	}
	awaitGone(t, "dc9", l.Running()...)
	// dc2 restarted after dc3 had died. It may have no message of srv1.dc3 itself,
	// and the news of dc1 about it are hearsay. Then srv1.dc3 is not a member, and
	// dc2 names dc3 by its federation state.
	awaitStatus(t, failure, lab.One(dc3), api.MemberFailed, lab.One(dc1))
	if members, err := wanMembers(t.Context(), lab.One(dc2)); err != nil {
		t.Error(err)
	} else if m, ok := members[lab.One(dc3).WANName()]; ok && m.Status != api.MemberFailed {
		t.Errorf("%s is %s at the restarted server, want failed or no member", m.Name, m.Status)
	}
	for _, s := range l.Running() {
		got := strings.Join(leftBehind(t.Context(), s, dc3), ", ")
		if got != "member, conditions, addresses" && (s != lab.One(dc2) || got != "conditions, addresses") {
			t.Errorf("%s has %q of the failed datacenter, want its member, conditions and addresses", s.WANName(), got)
		}
	}
	if out, err := deleteState(t, l, dc2, "dc3"); err != nil {
		t.Errorf("delete of a failed datacenter = %v, %s; want nil", err, out)
	}
	awaitGone(t, "dc3", l.Running()...)
	awaitNoDials(t, "dc3", l.Running()...)
	if chaos() { // takes more than a minute; the tests of federation and gossip have it in fake time
		took := testutil.Await(t, 2*time.Minute, "nothing of dc3 is left", func(ctx context.Context) error {
			for _, s := range l.Running() {
				if got := leftBehind(ctx, s, dc3); len(got) > 0 {
					return fmt.Errorf("%s has %v", s.WANName(), got)
				}
			}
			return nil
		})
		t.Logf("nothing of dc3 is left after %v", took)
	}
	awaitWhole(t, l, promptly, "the others stay")

	dc3.Start()
	awaitWhole(t, l, promptly, "deleted datacenter back")
	sameEverywhere(t, l)
}

// leftBehind returns what a server has of a datacenter. An error of a request is
// part of the result.
func leftBehind(ctx context.Context, s *lab.Node, dc *lab.Datacenter) (found []string) {
	members, err := wanMembers(ctx, s)
	if err != nil {
		found = append(found, err.Error())
	}
	if _, ok := members[lab.One(dc).WANName()]; ok {
		found = append(found, "member")
	}
	var conditions struct {
		Resources []struct{ ID struct{ Name string } }
	}
	if err := poll(ctx, s, "/api/federation/v1/Datacenter", &conditions); err != nil {
		found = append(found, err.Error())
	}
	for _, r := range conditions.Resources {
		if r.ID.Name == dc.Name {
			found = append(found, "conditions")
		}
	}
	cache, err := os.ReadFile(filepath.Join(s.DataDir(), "addresses.json"))
	if err != nil {
		found = append(found, err.Error())
	}
	if strings.Contains(string(cache), `"`+dc.Name+`"`) {
		found = append(found, "addresses")
	}
	return found
}

// steady fails the test if a request between two datacenters fails or takes
// longer than a second.
func steady(t *testing.T, a, b *lab.Node) {
	t.Helper()
	s := load(t, 2*time.Second, a, b)
	t.Logf("requests: %v", s)
	if s.failed > 0 || s.longest() > time.Second {
		t.Errorf("requests next to a dead datacenter: %v, first error %v; want none failed, all within 1s", s, s.err)
	}
}

// deleteState runs "wanfed federation delete" on the server of dc. It reaches
// the primary through the gateway of dc, with the certificate of an operator of
// the primary.
func deleteState(t *testing.T, l *lab.Lab, dc *lab.Datacenter, state string, args ...string) (string, error) {
	t.Helper()
	id, err := l.PKI.Issue(tlsutil.RoleOperator, "dc1", "operator")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out,
		err := lab.One(dc).CLI(append([]string{"federation", "delete", state, "--datacenter", "dc1", "--server",
		dc.Gateways[0].LANAddr(),
		"--ca-file", id.CA, "--cert-file", id.Cert, "--key-file", id.Key}, args...)...)
	t.Logf("delete %s %v after %v: %s", state, args, time.Since(began).Round(time.Millisecond), strings.TrimSpace(out))
	return out, err
}

// awaitGone waits until none of the servers has the state of dc.
func awaitGone(t *testing.T, dc string, servers ...*lab.Node) {
	t.Helper()
	took := testutil.Await(t, promptly, "state of "+dc+" gone", func(ctx context.Context) error {
		for _, s := range servers {
			states, err := statesOf(ctx, s)
			if err != nil {
				return err
			}
			if _, there := states[dc]; there {
				return fmt.Errorf("%s still has it", s.WANName())
			}
		}
		return nil
	})
	t.Logf("state of %s gone everywhere after %v", dc, took)
}

// awaitNoDials waits until the servers have no path to dc.
func awaitNoDials(t *testing.T, dc string, servers ...*lab.Node) {
	t.Helper()
	testutil.Await(t, promptly, "no dials of "+dc, func(ctx context.Context) error {
		for _, s := range servers {
			text, err := s.Metrics(ctx)
			if err != nil {
				return err
			}
			if strings.Contains(text, `wanfed_dial_attempts_total{addr="`) &&
				strings.Contains(text, `dc="`+dc+`",via=`) {
				return fmt.Errorf("%s still has paths to it", s.WANName())
			}
		}
		return nil
	})
}
