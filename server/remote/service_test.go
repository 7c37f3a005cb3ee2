// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/limit"
	"github.com/wanfed/wanfed/tlsutil"
)

// TestExchange_UnreadResponses proves that the server computes a bounded number
// of responses for a peer that does not read, over all streams and calls of the
// peer. All responses arrive once the peer reads.
func TestExchange_UnreadResponses(t *testing.T) {
	testutil.Bubble(t, testUnreadResponses)
}

func testUnreadResponses(t *testing.T) {
	const (
		size      = 256 << 10 // bytes of a response
		streams   = 2
		perStream = 60 // requests; also the number of calls
		// maxUnreadResponses is the limit of the responses of the peer.
		maxUnreadResponses = 32
	)
	var computed atomic.Int64
	client := newQueryClient(t, NewService(ServiceConfig{
		HTTP: func(context.Context, *pb.QueryRequest) (*pb.QueryResponse, error) {
			computed.Add(1)
			return &pb.QueryResponse{Status: 200, Body: make([]byte, size)}, nil
		},
		Responses: limit.New(func(tlsutil.Peer) int64 { return maxUnreadResponses }),
	}))
	var exchanges []pb.ServerService_ExchangeClient
	for range streams {
		stream, err := client.Exchange(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		requests := &pb.Questions{}
		for id := range uint64(perStream) {
			requests.All = append(requests.All, &pb.Question{Id: id, Query: &pb.QueryRequest{Path: "/"}})
		}
		if err := stream.Send(requests); err != nil {
			t.Fatal(err)
		}
		exchanges = append(exchanges, stream)
	}
	synctest.Wait() // until the server is blocked
	// Each stream has sent one more response, and is sending one more.
	if got, highest := computed.Load(), int64(maxUnreadResponses+2*streams); got == 0 || got > highest {
		t.Errorf("computed responses without a read = %d, want 1 to %d", got, highest)
	}

	var readers sync.WaitGroup
	for range perStream {
		readers.Go(func() {
			resp, err := client.Query(t.Context(), &pb.QueryRequest{}, grpc.WaitForReady(true))
			if err != nil || len(resp.GetBody()) != size {
				t.Errorf("Query() = %d bytes, %v, want %d bytes", len(resp.GetBody()), err, size)
			}
		})
	}
	for _, stream := range exchanges {
		readers.Go(func() {
			for received := 0; received < perStream; {
				msg, err := stream.Recv()
				if err != nil {
					t.Errorf("Recv() = %v after %d responses, want %d responses", err, received, perStream)
					return
				}
				received += len(msg.GetAll())
			}
		})
	}
	readers.Wait()
	if got, want := computed.Load(), int64((streams+1)*perStream); got != want {
		t.Errorf("computed responses = %d, want %d", got, want)
	}
}

// newQueryClient serves service in memory, and returns a client of the service.
func newQueryClient(t *testing.T, service *Service) pb.ServerServiceClient {
	t.Helper()
	ln := bufconn.Listen(64 << 10)
	dc2 := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"}
	srv := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(tlsutil.WithPeer(ctx, dc2), req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, streamWithContext{ss, tlsutil.WithPeer(ss.Context(), dc2)})
		}))
	pb.RegisterServerServiceServer(srv, service)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		<-served
	})
	// A window that grows would accept more unread responses.
	cc, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return pb.NewServerServiceClient(cc)
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamWithContext) Context() context.Context { return s.ctx }

// TestQuery_Caller proves that a request has the caller that the server names, in
// a call as over a stream, and that a server names only callers of its
// datacenter.
func TestQuery_Caller(t *testing.T) {
	var recorded atomic.Int64
	client := newQueryClient(t, NewService(ServiceConfig{
		HTTP: func(ctx context.Context, _ *pb.QueryRequest) (*pb.QueryResponse, error) {
			c, _ := policy.FromContext(ctx)
			return &pb.QueryResponse{Status: 200, Body: []byte(c.String())}, nil
		},
		Record: func(_ context.Context, c *policy.Call, err error) error {
			if !errors.Is(err, resource.ErrDenied) || c.Caller.Role != tlsutil.RoleServer {
				t.Errorf("recorded call of %v = %v, want ErrDenied", c.Caller, err)
			}
			recorded.Add(1)
			return nil
		},
		Responses: limit.New(func(tlsutil.Peer) int64 { return 1 }),
	}))
	exchange, err := client.Exchange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for caller, want := range map[string]string{
		"":                   "server/dc2/srv1",
		"client/dc2/app":     "client/dc2/app via server/dc2/srv1",
		"anonymous/dc2/srv1": "anonymous/dc2/srv1 via server/dc2/srv1",
		"cli/dc1/joe":        "not allowed: server/dc2/srv1 may not make requests for cli/dc1/joe: a server makes requests only for callers of its own datacenter",
	} {
		req := &pb.QueryRequest{Path: "/v1/kv/a", Caller: caller}
		resp, err := client.Query(t.Context(), req)
		if err != nil || string(resp.GetBody()) != want {
			t.Errorf("Query() with the caller %q = %s, %v, want %s", caller, resp.GetBody(), err, want)
		}
		err = exchange.Send(&pb.Questions{All: []*pb.Question{{Id: 1, Query: req}}})
		var out *pb.Answers
		if err == nil {
			out, err = exchange.Recv()
		}
		if err != nil || string(out.GetAll()[0].GetAnswer().GetBody()) != want {
			t.Errorf("Exchange() with the caller %q = %v, %v, want %s", caller, out, err, want)
		}
	}
	if recorded.Load() != 2 {
		t.Errorf("recorded refusals = %d, want 2", recorded.Load())
	}
}
