// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
)

func TestPrintTakeOver(t *testing.T) {
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
		var out strings.Builder
		printTakeOver(&out, "dc1", tt.state)
		if !strings.Contains(out.String(), tt.want) || strings.Contains(out.String(), tt.not) {
			t.Errorf("printTakeOver(%v) = %q, want %q and not %q", tt.state, out.String(), tt.want, tt.not)
		}
	}
}

func TestConfirm(t *testing.T) {
	for answer, ok := range map[string]bool{"yes\n": true, "yes": true, "y\n": false, "": false, "no\n": false} {
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(answer))
		cmd.SetOut(new(strings.Builder))
		if err := confirm(cmd); (err == nil) != ok {
			t.Errorf("confirm() with answer %q = %v, want success %v", answer, err, ok)
		}
	}
}
