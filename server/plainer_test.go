// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestPlainer: what failed is told without what gRPC puts around it.
func TestPlainer(t *testing.T) {
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
