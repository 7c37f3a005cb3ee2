// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	"github.com/wanfed/wanfed/server/snapshot"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// badServer is a server whose connections fail, or that sends invalid data. The
// script operator.txtar and packages server and test have tests with real
// servers.
type badServer struct {
	pb.UnimplementedOperatorServiceServer
	save    func(saveStream) error
	restore func(restoreStream) error
}

func (b *badServer) SaveSnapshot(_ *pb.SaveSnapshotRequest, stream saveStream) error {
	return b.save(stream)
}

func (b *badServer) RestoreSnapshot(stream restoreStream) error {
	return b.restore(stream)
}

// dialBadServer starts the server and connects to it.
func dialBadServer(t *testing.T, b *badServer) snapshot.Transfer {
	t.Helper()
	p := newPKI(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig := p.identity(t, tlsutil.RoleServer, "srv1").ServerConfig(wanfed.ProtoGRPC)
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(tlsConfig)))
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
	return o.transfer(cc, io.Discard)
}

// TestDialServer_ForeignCA checks the error of a client that trusts the CA of
// the server and another CA, which the server does not trust. Its certificate
// is of the other CA.
func TestDialServer_ForeignCA(t *testing.T) {
	ours, foreign := newPKI(t), newPKI(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(
		ours.identity(t, tlsutil.RoleServer, "srv1").ServerConfig(wanfed.ProtoGRPC))))
	var serve sync.WaitGroup
	serve.Go(func() { srv.Serve(ln) })
	defer serve.Wait()
	defer srv.Stop()
	files := foreign.files(t, tlsutil.RoleOperator, "cli")
	oursPEM, err := os.ReadFile(filepath.Join(ours.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	both, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.CA, append(both, oursPEM...), 0o600); err != nil {
		t.Fatal(err)
	}
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = api.DialServer(t.Context(), id, ln.Addr().String(), "", "dc1")
	if err == nil || !strings.Contains(err.Error(), "peer rejected our certificate") &&
		!strings.Contains(err.Error(), "does not trust the CA of this certificate") {
		t.Errorf("DialServer() = %v, want the rejection of the certificate", err)
	}
}

// Streams of the operator service.
type (
	saveStream    = grpc.ServerStreamingServer[pb.SnapshotPart]
	restoreStream = grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]
)

var someData = &pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: []byte("data")}}

// endOf returns the last part of a snapshot of dc, with the size and the
// SHA-256 of someData.
func endOf(dc string) *pb.SnapshotPart {
	return &pb.SnapshotPart{Part: &pb.SnapshotPart_End{End: &pb.SnapshotManifest{
		Datacenter: dc, Node: "srv1", Index: 3, Size: 4,
		Sha256: "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7",
	}}}
}

func TestSave_FailsWithoutFile(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		save func(saveStream) error
		want string
	}{
		{"no end", t.Context(), func(s saveStream) error { return s.Send(someData) },
			"the stream ended before the snapshot was complete; nothing was saved"},
		{"lost", t.Context(), func(s saveStream) error {
			return errors.Join(s.Send(someData), status.Error(codes.Unavailable, "server is stopping"))
		}, "; nothing was saved"},
		{"interrupted", ctx, func(s saveStream) error {
			s.Send(someData)
			interrupt()
			<-s.Context().Done()
			return nil
		}, "context canceled; nothing was saved"},
		{"damaged", t.Context(), func(s saveStream) error {
			return errors.Join(s.Send(someData), s.Send(someData), s.Send(endOf("dc1")))
		}, "damaged on the way"},
		{"other datacenter", t.Context(), func(s saveStream) error {
			return errors.Join(s.Send(someData), s.Send(endOf("dc2")))
		}, "it is of datacenter dc2, not of dc1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			transfer := dialBadServer(t, &badServer{save: tt.save})
			dir := t.TempDir()
			_, err := transfer.Save(tt.ctx, false, filepath.Join(dir, "x.snap"))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Save() = %v, want %s", err, tt.want)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
				t.Errorf("files after Save() = %v, %v, want none", files, err)
			}
		})
	}
}

func TestSave_WritesPrivateFile(t *testing.T) {
	transfer := dialBadServer(t, &badServer{save: func(s saveStream) error {
		return errors.Join(s.Send(someData), s.Send(endOf("dc1")))
	}})
	path := filepath.Join(t.TempDir(), "x.snap")
	if m, err := transfer.Save(t.Context(), false, path); err != nil || m.Size != 4 {
		t.Errorf("Save() = %v, %v, want size 4", m, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("file = %v, %v, want mode 0600", st, err)
	}
}

// The error of a failed restore reports whether resources may have changed.
func TestRestore_Fails(t *testing.T) {
	m := raftstore.Manifest{Datacenter: "dc1", Node: "srv1", Index: 3, Size: 4}
	for _, tt := range []struct {
		name    string
		data    io.Reader
		restore func(restoreStream) error
		want    string
	}{
		{"refused at once", strings.NewReader("data"), func(restoreStream) error {
			return status.Error(codes.InvalidArgument, "it is of datacenter dc2")
		}, "it is of datacenter dc2; nothing was changed"},
		{"lost", strings.NewReader("data"), func(s restoreStream) error {
			for {
				if _, err := s.Recv(); err != nil {
					return status.Error(codes.Unavailable, "server is stopping")
				}
			}
		}, "server is stopping; the outcome is unknown"},
		{"file that cannot be read", failingReader{}, func(s restoreStream) error {
			<-s.Context().Done()
			return nil
		}, "read the snapshot: input/output error; nothing was changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			transfer := dialBadServer(t, &badServer{restore: tt.restore})
			_, err := transfer.Restore(t.Context(), m, tt.data)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Restore() = %v, want %s", err, tt.want)
			}
		})
	}
}

// The outcome of a write without a leader is known: nothing was written.
func TestOutcomeUnknown(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		ctx  context.Context
		err  error
		want bool
	}{
		{t.Context(), nil, false},
		{ended, nil, false},
		{t.Context(), resource.StatusError(resource.ErrNotLeader), false},
		{t.Context(), status.Error(codes.InvalidArgument, "no such server"), false},
		{t.Context(), status.Error(codes.Unavailable, "connection lost"), true},
		{ended, status.Error(codes.Canceled, "context canceled"), true},
	} {
		if got := outcomeUnknown(tt.ctx, tt.err); got != tt.want {
			t.Errorf("outcomeUnknown(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("input/output error") }

func TestPeerRows(t *testing.T) {
	peers := raftPeers(&pb.ListPeersResponse{Peers: []*pb.RaftPeer{
		{Node: "srv1", Id: "u1", Address: "10.0.0.1:8300", Leader: true, Voter: true, Member: "alive",
			LastContact: &durationpb.Duration{}, LastIndex: 9},
		{Node: "srv2", Id: "u2", Address: "10.0.0.2:8300", Member: "alive",
			LastContact: durationpb.New(1200 * time.Millisecond), LastIndex: 7, Trailing: 2},
		{Node: "srv3", Voter: true, Member: "unknown"},
	}})
	for wide, want := range map[bool]string{
		false: "srv1 10.0.0.1:8300 leader true alive 0s 0\n" +
			"srv2 10.0.0.2:8300 follower false alive 1.2s 2\n" +
			"srv3 - follower true unknown - -",
		true: "srv1 10.0.0.1:8300 leader true alive 0s 0 9 u1\n" +
			"srv2 10.0.0.2:8300 follower false alive 1.2s 2 7 u2\n" +
			"srv3 - follower true unknown - - - -",
	} {
		var got []string
		for _, row := range peerRows(peers, wide)[1:] {
			got = append(got, strings.Join(row, " "))
		}
		if strings.Join(got, "\n") != want {
			t.Errorf("peerRows() =\n%s\nwant\n%s", strings.Join(got, "\n"), want)
		}
	}
}
