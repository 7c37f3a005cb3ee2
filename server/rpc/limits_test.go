// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestMaxOpenCalls(t *testing.T) {
	e := &Edge{cfg: Config{DC: "dc1"}}
	const exempt = -1 // no limit
	for p, want := range map[tlsutil.Peer]int64{
		{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc1"}:  exempt,
		{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}:  manyCalls,
		{Role: tlsutil.RoleOperator, Node: "joe", DC: "dc1"}: manyCalls,
		{Role: tlsutil.RoleClient, Node: "web1", DC: "dc1"}:  fewCalls,
		{Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1"}:  fewCalls,
	} {
		got := maxOpenCalls(p.Role)
		if e.exempt(p) {
			got = exempt
		}
		if got != want {
			t.Errorf("maximum number of open calls of %v = %d, want %d", p, got, want)
		}
	}
}

// TestLimitedResponse_DroppedByGRPC proves that the garbage collector releases
// the slot of a response that gRPC dropped without freeing the buffer. gRPC
// does this if the stream of the response has just ended.
func TestLimitedResponse_DroppedByGRPC(t *testing.T) {
	p := tlsutil.Peer{Role: tlsutil.RoleClient, Node: "web1", DC: "dc1"}
	responses := limit.New(func(tlsutil.Peer) int64 { return 1 })
	slot := responses.TryAcquire(p)
	closed, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &limitedResponse{
		message: &pb.QueryResponse{Body: make([]byte, 2*SmallResponse)}, hold: hold{closed: closed, slot: slot},
	}
	if _, err := (responseCodec{resource.Codec()}).Marshal(r); err != nil {
		t.Fatal(err)
	}
	ctx, cancelWait := context.WithTimeout(t.Context(), time.Minute)
	defer cancelWait()
	for ctx.Err() == nil {
		runtime.GC()
		if s := responses.TryAcquire(p); s != nil {
			s.Release()
			return
		}
	}
	t.Error("TryAcquire() = nil within a minute after gRPC dropped the response, want a slot")
}
