// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// TestPlainer: what gRPC says of a call that failed is told without what gRPC puts around it.
func TestPlainer(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"no leader":                 "no leader",
		"a desc = b":                "a desc = b",
		"rpc error: code = Aborted": "rpc error: code = Aborted",
		"follow dc1: " + status.Error(codes.Aborted, "compare anew").Error(): "follow dc1: compare anew",
	} {
		if got := plainer(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}

	// A real client's error of a dial.
	cc, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			return nil, errors.New(`dial dc2: cert has no SAN "a.b": refused`)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	err = cc.Invoke(t.Context(), "/a/b", nil, nil)
	if got := detailOf(err, time.Time{}, ""); got != `dial dc2: cert has no SAN "a.b": refused` {
		t.Errorf("%v is told as %q", err, got)
	}
}
