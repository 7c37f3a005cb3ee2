// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// badServer stands for a server that goes away, or says what a real one does not: those are in script operator, and in
// packages server and test.
type badServer struct {
	pb.UnimplementedOperatorServiceServer
	save    func(stream grpc.ServerStreamingServer[pb.SnapshotPart]) error
	restore func(stream grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error
}

func (b *badServer) SaveSnapshot(_ *pb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[pb.SnapshotPart]) error {
	return b.save(stream)
}

func (b *badServer) RestoreSnapshot(stream grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error {
	return b.restore(stream)
}

// callBad starts the server and returns a connection to it.
func callBad(t *testing.T, b *badServer) (*operator, pb.OperatorServiceClient) {
	t.Helper()
	p := newPKI(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(p.identity(t, tlsutil.RoleServer, "srv1").ServerConfig(wanfed.ProtoGRPC))))
	pb.RegisterOperatorServiceServer(srv, b)
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	o := &operator{dc: "dc1", server: ln.Addr().String()}
	cc, closeAll, err := api.DialServer(t.Context(), p.identity(t, tlsutil.RoleOperator, "cli"), o.server, "", o.dc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeAll)
	return o, pb.NewOperatorServiceClient(cc)
}

var someData = &pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: []byte("data")}}

// TestSaveThatFails leaves nothing, and says so.
func TestSaveThatFails(t *testing.T) {
	end := func(change func(*pb.SnapshotManifest)) *pb.SnapshotPart {
		m := &pb.SnapshotManifest{
			Datacenter: "dc1", Node: "srv1", Index: 3, Size: 4,
			Sha256: "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7",
		}
		change(m)
		return &pb.SnapshotPart{Part: &pb.SnapshotPart_End{End: m}}
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		save func(stream grpc.ServerStreamingServer[pb.SnapshotPart]) error
		want string
	}{
		{"no end", t.Context(), func(s grpc.ServerStreamingServer[pb.SnapshotPart]) error { return s.Send(someData) },
			"the stream ended before the snapshot was complete; nothing was saved"},
		{"lost", t.Context(), func(s grpc.ServerStreamingServer[pb.SnapshotPart]) error {
			return errors.Join(s.Send(someData), status.Error(codes.Unavailable, "server is stopping"))
		}, "; nothing was saved"},
		{"interrupted", ctx, func(s grpc.ServerStreamingServer[pb.SnapshotPart]) error {
			s.Send(someData)
			interrupt()
			<-s.Context().Done()
			return nil
		}, "context canceled; nothing was saved"},
		{"damaged", t.Context(), func(s grpc.ServerStreamingServer[pb.SnapshotPart]) error {
			return errors.Join(s.Send(someData), s.Send(someData), s.Send(end(func(*pb.SnapshotManifest) {})))
		}, "damaged on the way"},
		{"foreign", t.Context(), func(s grpc.ServerStreamingServer[pb.SnapshotPart]) error {
			return errors.Join(s.Send(someData), s.Send(end(func(m *pb.SnapshotManifest) { m.Datacenter = "dc2" })))
		}, "it is of datacenter dc2, not of dc1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, c := callBad(t, &badServer{save: tt.save})
			dir := t.TempDir()
			_, err := o.save(tt.ctx, c, filepath.Join(dir, "x.snap"), io.Discard)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("saved with %v, want %s", err, tt.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
	o, c := callBad(t, &badServer{save: func(s grpc.ServerStreamingServer[pb.SnapshotPart]) error {
		return errors.Join(s.Send(someData), s.Send(end(func(*pb.SnapshotManifest) {})))
	}})
	path := filepath.Join(t.TempDir(), "x.snap")
	if m, err := o.save(t.Context(), c, path, io.Discard); err != nil || m.Size != 4 {
		t.Errorf("saved %v, %v", m, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("file %v, %v", st, err)
	}
}

// TestRestoreThatFails says whether something may have changed.
func TestRestoreThatFails(t *testing.T) {
	m := raftstore.Manifest{Datacenter: "dc1", Node: "srv1", Index: 3, Size: 4}
	for _, tt := range []struct {
		name    string
		data    io.Reader
		restore func(grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error
		want    string
	}{
		{"refused at once", strings.NewReader("data"), func(grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error {
			return status.Error(codes.InvalidArgument, "it is of datacenter dc2")
		}, "it is of datacenter dc2; nothing was changed"},
		{"lost", strings.NewReader("data"), func(s grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error {
			for {
				if _, err := s.Recv(); err != nil {
					return status.Error(codes.Unavailable, "server is stopping")
				}
			}
		}, "server is stopping; the outcome is unknown"},
		{"file that cannot be read", failingReader{}, func(s grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error {
			<-s.Context().Done()
			return nil
		}, "read the snapshot: disk on fire; nothing was changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, c := callBad(t, &badServer{restore: tt.restore})
			_, err := o.restore(t.Context(), c, m, tt.data, io.Discard)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("restored with %v, want %s", err, tt.want)
			}
		})
	}
}

// TestLeavesOpen: where there is no leader, nothing was done, and nobody has to look.
func TestLeavesOpen(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		ctx  context.Context
		err  error
		open bool
	}{
		{t.Context(), nil, false},
		{ended, nil, false},
		{t.Context(), resource.StatusError(resource.ErrNotLeader), false},
		{t.Context(), status.Error(codes.InvalidArgument, "no such server"), false},
		{t.Context(), status.Error(codes.Unavailable, "connection lost"), true},
		{ended, status.Error(codes.Canceled, "context canceled"), true},
	} {
		if open := outcomeUnknown(tt.ctx, tt.err); open != tt.open {
			t.Errorf("%v: %v", tt.err, open)
		}
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

func TestPeerRows(t *testing.T) {
	peers := raftPeers(&pb.ListPeersResponse{Peers: []*pb.RaftPeer{
		{Node: "srv1", Id: "u1", Address: "10.0.0.1:8300", Leader: true, Voter: true, Member: "alive", LastContact: &durationpb.Duration{}, LastIndex: 9},
		{Node: "srv2", Id: "u2", Address: "10.0.0.2:8300", Member: "alive", LastContact: durationpb.New(1200 * time.Millisecond), LastIndex: 7, Trailing: 2},
		{Node: "srv3", Voter: true, Member: "unknown"},
	}})
	for wide, want := range map[bool]string{
		false: "srv1 10.0.0.1:8300 leader true alive 0s 0\nsrv2 10.0.0.2:8300 follower false alive 1.2s 2\nsrv3 - follower true unknown - -",
		true:  "srv1 10.0.0.1:8300 leader true alive 0s 0 9 u1\nsrv2 10.0.0.2:8300 follower false alive 1.2s 2 7 u2\nsrv3 - follower true unknown - - - -",
	} {
		var got []string
		for _, row := range peerRows(peers, wide)[1:] {
			got = append(got, strings.Join(row, " "))
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("rows:\n%s\nwant:\n%s", strings.Join(got, "\n"), want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 999_400: "999.4 kB", 999_600: "1.0 MB", 5_300_000_000: "5.3 GB", 2e15: "2000000.0 GB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s, want %s", n, got, want)
		}
	}
}
