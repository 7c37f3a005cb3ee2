// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/resource"
)

// waiting makes a call that is answered here, again and again while it finds no leader.
func (c *calls) waiting(ctx context.Context, here func() (any, error)) (any, error) {
	for begun := time.Now(); ; {
		changed := c.leader.LeaderChanged()
		resp, err := here()
		if err == nil || !notDone(err) || time.Since(begun) >= leaderHold {
			return resp, err
		}
		pause := time.NewTimer(forwardPause)
		select {
		case <-changed:
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// noLeader is what a call fails with that has waited for a leader in vain.
func (c *calls) noLeader() error {
	why := "its servers must reach each other (see: wanfed members)"
	if trouble := c.leader.WriteError(); trouble != nil {
		why = fmt.Sprintf("%s: %v", c.node, trouble)
	}
	return resource.StatusError(leaderless(fmt.Sprintf("%s has no leader; %s", c.dc, why)))
}

// leaderless is a resource.ErrNotLeader with a text of its own.
type leaderless string

func (e leaderless) Error() string        { return string(e) }
func (e leaderless) Is(target error) bool { return target == resource.ErrNotLeader }

// notLeader refuses a call that was forwarded to this server although node leads, at once: the one that forwarded it is behind,
// and asks again.
func (c *calls) notLeader(node string) error {
	return resource.StatusError(fmt.Errorf("%s in %s: %w; %s is", c.node, c.dc, resource.ErrNotLeader, node))
}

// notDone says whether a call failed before anything was done: there is no leader that took it.
func notDone(err error) bool { return errors.Is(resource.FromStatus(err), resource.ErrNotLeader) }

// notSent refuses a call that could not be sent to the leader: nothing was done, so that it may be asked again.
func (c *calls) notSent(node string, err error) error {
	return resource.StatusError(fmt.Errorf("%s in %s: %w; %s is, and cannot be reached: %s", c.node, c.dc, resource.ErrNotLeader, node, status.Convert(err).Message()))
}

// broken says of a call that was sent to the leader, and ended without an answer, that it may be done.
func (c *calls) broken(node string, err error) error {
	if status.Code(err) != codes.Unavailable || resource.FromStatus(err) != err {
		return err
	}
	return resource.StatusError(fmt.Errorf("at the leader of %s, %s: %w: %s; read before you do it again", c.dc, node, resource.ErrUnknownOutcome, status.Convert(err).Message()))
}
