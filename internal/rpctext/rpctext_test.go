// SPDX-License-Identifier: MPL-2.0

package rpctext_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/internal/rpctext"
)

// TestPlain checks that Plain removes only text that gRPC adds.
func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"no leader":                 "no leader",
		"a desc = b":                "a desc = b",
		"rpc error: code = Aborted": "rpc error: code = Aborted",
		"follow dc1: " + status.Error(codes.Aborted,
			"compare again").Error(): "follow dc1: compare again",
		"a: " + status.Error(codes.Unavailable, "b: "+status.Error(codes.Aborted,
			"c").Error()).Error(): "a: b: c",
		`connection error: desc = "error reading server preface: EOF"`:                                           "error reading server preface: EOF",
		`a: rpc error: code = Unavailable desc = latest balancer error: connection error: desc = "transport: x"`: "a: x",
		`see: wanfed status: rpc error: code = Unavailable desc = connection error: desc = "transport: Error while ` +
			`dialing: no SAN \"a\""`: `see: wanfed status: no SAN "a"`,
	} {
		if got := rpctext.Plain(text); got != want {
			t.Errorf("Plain(%q) = %q, want %q", text, got, want)
		}
	}
}
