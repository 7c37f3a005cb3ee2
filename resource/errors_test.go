// SPDX-License-Identifier: MPL-2.0

package resource_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/resource"
)

// TestErrorText checks that ErrorText removes only text that gRPC adds.
func TestErrorText(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"no leader":                 "no leader",
		"a desc = b":                "a desc = b",
		"rpc error: code = Aborted": "rpc error: code = Aborted",
		"follow dc1: " + status.Error(codes.Aborted,
			"compare again").Error(): "follow dc1: compare again",
		`see: wanfed status: rpc error: code = Unavailable desc = connection error: desc = "transport: Error while ` +
			`dialing: no SAN \"a\""`: `see: wanfed status: no SAN "a"`,
	} {
		if got := resource.ErrorText(text); got != want {
			t.Errorf("ErrorText(%q) = %q, want %q", text, got, want)
		}
	}
}
