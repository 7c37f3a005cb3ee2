// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/httpapi"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// Calls whose large answers are not read keep their turns, so that no more are made for that peer; others are answered. The turns come back
// when the calls are given up, and when their connection is.
func TestUnreadAnswersTakeTurns(t *testing.T) {
	ca := tlstest.NewCA(t)
	g := newTargetOf(t, ca)
	defer g.part.end(t)
	connect := func(node string) *grpc.ClientConn {
		id := ca.Identity(t, tlsutil.RoleOperator, node, "dc1")
		cc, err := api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
			return (&tls.Dialer{Config: id.ClientConfig("server.dc1.wanfed", wanfed.ProtoGRPC)}).DialContext(ctx, "tcp", g.addrs.Server)
		}, grpc.WithStaticStreamWindowSize(64<<10)) // much less than the answer
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cc.Close() })
		return cc
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list := &pb.ListRequest{Type: kv.EntryType}
	answered := func(cc *grpc.ClientConn, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		got, err := pb.NewResourceServiceClient(cc).List(ctx, list, grpc.WaitForReady(true))
		if err == nil && len(got.GetResources()) != 1 {
			err = fmt.Errorf("%d entries", len(got.GetResources()))
		}
		return err
	}
	other := connect("other")
	r, err := resource.New(kv.EntryType, "large", &pb.KVEntry{Value: make([]byte, kv.MaxValue)})
	if err != nil {
		t.Fatal(err)
	}
	r.Id.Uid = ""
	if _, err := pb.NewResourceServiceClient(other).Write(ctx, &pb.WriteRequest{Resource: r}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		end  func(cc *grpc.ClientConn, stop context.CancelFunc)
	}{
		{"calls given up", func(_ *grpc.ClientConn, stop context.CancelFunc) { stop() }},
		{"connection closed", func(cc *grpc.ClientConn, _ context.CancelFunc) { cc.Close() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			silent, sameCert := connect("silent"), connect("silent")
			defer silent.Close()
			calls, stop := context.WithCancel(ctx)
			defer stop()
			for range 2 * maxTurns {
				s, err := silent.NewStream(calls, &grpc.StreamDesc{ServerStreams: true}, pb.ResourceService_List_FullMethodName)
				if err == nil {
					err = s.SendMsg(list)
				}
				if err == nil {
					err = s.CloseSend()
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				until(t, func() bool { return answered(sameCert, 300*time.Millisecond) != nil })
			}
			if err := answered(other, starting); err != nil {
				t.Errorf("another peer: %v", err)
			}
			tt.end(silent, stop)
			until(t, func() bool { return answered(sameCert, time.Second) == nil })
		})
	}
}

// TestForgottenAnswerGivesItsTurnBack: gRPC drops an answer whose stream has just ended without a word.
func TestForgottenAnswerGivesItsTurnBack(t *testing.T) {
	turns := make(httpapi.Turns, 1)
	turn, err := turns.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closed, cancel := context.WithCancel(context.Background())
	defer cancel()
	u := &unsent{answer: &pb.QueryResponse{Body: make([]byte, 2*smallAnswer)}, turn: turn, closed: closed}
	if _, err := (unsentCodec{resource.Codec()}).Marshal(u); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { runtime.GC(); return len(turns) == 0 })
}
