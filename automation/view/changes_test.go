// SPDX-License-Identifier: MPL-2.0

package view

import (
	"slices"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
)

func TestChanges_On(t *testing.T) {
	before := map[string]string{"same": "1", "gone": "1", "other": "1"}
	after := map[string]string{"same": "1", "other": "2", "new": "1"}
	for _, test := range []struct {
		q    *pb.TaskQuery
		want []string
	}{
		{&pb.TaskQuery{Kind: "services"}, []string{"gone", "new", "other"}},
		{&pb.TaskQuery{Kind: "services", On: []string{"added"}}, []string{"new"}},
		{&pb.TaskQuery{Kind: "services", On: []string{"removed", "changed"}}, []string{"gone", "other"}},
		{&pb.TaskQuery{Kind: "catalog-services"}, []string{"gone", "new"}},
		{&pb.TaskQuery{Kind: "catalog-services", On: []string{"changed"}}, []string{"other"}},
		{&pb.TaskQuery{Kind: "datacenter"}, []string{"gone", "new", "other"}},
		{&pb.TaskQuery{Kind: "datacenter", State: "unreachable"}, []string{"new"}},
		{&pb.TaskQuery{Kind: "datacenter", State: "unreachable", On: []string{"removed"}}, []string{"gone"}},
	} {
		if got := Changes(test.q, before, after); !slices.Equal(got, test.want) {
			t.Errorf("Changes(%v) = %q, want %q", test.q, got, test.want)
		}
	}
}
