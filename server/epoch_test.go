// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestEpoch_StolenCertificate reports newer epochs to a primary with the
// certificate of a server of a secondary. Nothing proves them, so the
// primary acknowledges federated writes all the time. Its responses carry its
// epoch, so that an outdated caller learns it.
func TestEpoch_StolenCertificate(t *testing.T) {
	testutil.Cluster(t)
	ca := tlstest.NewCA(t)
	f := ca.Files(t, tlsutil.RoleServer, "srv1", "dc1")
	p, addrs := startServer(t, Config{
		DC: "dc1", Node: "srv1", DataDir: t.TempDir(), CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key,
	})
	defer p.end(t)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	operator := pb.NewResourceServiceClient(connectAs(t, ca, addrs.Server, tlsutil.RoleOperator, "cli", "dc1"))
	write := func(name string) (*pb.Resource, error) {
		data, err := anypb.New(&pb.Document{Content: structpb.NewStringValue("x")})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := operator.Write(ctx, &pb.WriteRequest{
			Resource: &pb.Resource{Id: &pb.ID{Type: document.Type, Name: name}, Data: data},
		})
		return resp.GetResource(), err
	}
	testutil.Await(t, startTimeout, "the first write", func(context.Context) error {
		r, err := write("before")
		if err == nil && r.PrimaryEpoch != 1 {
			t.Errorf("Write() = %v, want epoch 1", r)
		}
		return err
	})
	written := 0
	other := pb.NewServerServiceClient(connectAs(t, ca, addrs.Server, tlsutil.RoleServer, "srv1", "dc2"))
	call := func(epoch string) string {
		t.Helper()
		var header metadata.MD
		sent := metadata.AppendToOutgoingContext(ctx, api.EpochKey, epoch)
		if _, err := other.Reachability(sent, &pb.ReachabilityRequest{}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		return strings.Join(header.Get(api.EpochKey), ",")
	}
	for _, epoch := range []string{"1:dc1", "2:dc2", "3:dc3", "9:dc1", "65000:dc2", "x"} {
		for range 3 {
			if got := call(epoch); got != "1:dc1" {
				t.Errorf("epoch in the response to a call with %s = %q, want 1:dc1", epoch, got)
			}
			name := fmt.Sprintf("after-%d", written)
			if r, err := write(name); err != nil || r.PrimaryEpoch != 1 {
				t.Errorf("Write() after a call with epoch %s = %v, %v, want epoch 1", epoch, r, err)
			}
			written++
			<-time.After(200 * time.Millisecond) // the report is examined in the background
		}
	}
}
