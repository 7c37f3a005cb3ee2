// SPDX-License-Identifier: MPL-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Outcome returns a condition with the given type and reason. It is true if err
// is nil. Otherwise it is false, and its message is the text of err.
func Outcome(typ, reason string, err error) *pb.Condition {
	if err != nil {
		return &pb.Condition{Type: typ, State: pb.Condition_STATE_FALSE, Reason: reason, Message: err.Error()}
	}
	return &pb.Condition{Type: typ, State: pb.Condition_STATE_TRUE, Reason: reason}
}

// WriteStatus sets conditions in the status of r that this controller writes.
// It replaces the conditions of the same types, and keeps the others. The
// observed generation becomes that of r, the resource that the caller has
// observed. WriteStatus writes nothing if r already has this status. The errors
// are those of resource.FromStatus: resource.ErrNotFound and
// resource.ErrUIDMismatch report that r was deleted.
func (e *Env) WriteStatus(ctx context.Context, r *pb.Resource, conditions ...*pb.Condition) error {
	old := r.GetStatus()[e.controller.Name]
	next := &pb.Status{ObservedGeneration: r.GetGeneration()}
	kept := slices.DeleteFunc(slices.Clone(old.GetConditions()), func(c *pb.Condition) bool {
		return slices.ContainsFunc(conditions, func(n *pb.Condition) bool { return n.GetType() == c.GetType() })
	})
	next.Conditions = slices.SortedFunc(slices.Values(append(kept, conditions...)), compareConditions)
	for i, c := range next.Conditions {
		if i > 0 && c.GetType() == next.Conditions[i-1].GetType() {
			return fmt.Errorf("write status of %s: %w condition %q: it is given twice",
				resource.IDString(r.GetId()), resource.ErrInvalid, c.GetType())
		}
	}
	if old.GetObservedGeneration() == next.ObservedGeneration &&
		slices.EqualFunc(old.GetConditions(), next.Conditions, func(a, b *pb.Condition) bool { return proto.Equal(a, b) }) {
		return nil
	}
	_, err := e.Client.WriteStatus(ctx, &pb.WriteStatusRequest{Id: r.GetId(), Key: e.controller.Name, Status: next})
	return resource.FromStatus(err)
}

func compareConditions(a, b *pb.Condition) int { return strings.Compare(a.GetType(), b.GetType()) }
