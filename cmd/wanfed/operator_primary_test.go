// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
)

func TestTakeOverText(t *testing.T) {
	for _, tt := range []struct {
		state     *pb.TakeOverResponse
		want, not string
	}{
		{
			&pb.TakeOverResponse{
				Datacenter: "dc2", Index: 42, Complete: true, Unreachable: "no path",
				LastContact: durationpb.New(time.Minute),
			},
			"dc1 does not respond: no path\ndc2 has changes of dc1 up to index 42. Last contact: 1m0s ago.\n",
			"not received all",
		},
		{&pb.TakeOverResponse{Datacenter: "dc2"}, "dc1 responds. To lose no write, set", "does not respond"},
		{&pb.TakeOverResponse{Datacenter: "dc2"}, "dc2 has not received all resources", "does not respond"},
	} {
		got := takeOverText("dc1", tt.state)
		if !strings.Contains(got, tt.want) || strings.Contains(got, tt.not) {
			t.Errorf("takeOverText(%v) = %q, want %q and not %q", tt.state, got, tt.want, tt.not)
		}
	}
}
