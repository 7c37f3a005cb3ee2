// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
)

const (
	// partSize is how much data goes into one message, in bytes.
	partSize = 256 << 10
	// maxSaves bounds the snapshots that are saved at one time: each keeps a state in memory.
	maxSaves = 2
)

// SaveSnapshot implements pb.OperatorServiceServer. It ends with the caller: a caller that does not take what it is sent, and
// does not answer either, is cut off by keepalive.
func (o *operatorService) SaveSnapshot(_ *pb.SaveSnapshotRequest, stream grpc.ServerStreamingServer[pb.SnapshotPart]) error {
	select {
	case o.saves <- struct{}{}:
		defer func() { <-o.saves }()
	default:
		return status.Errorf(codes.ResourceExhausted, "%d snapshots are being saved already; try again when one is done", maxSaves)
	}
	saved, err := o.store.Snapshot(stream.Context())
	if err != nil {
		return resource.StatusError(err)
	}
	m := raftstore.Manifest{
		Version: version.Version, Datacenter: o.dc, Node: o.node, CreatedAt: time.Now(), Index: saved.Index, Term: saved.Term,
	}
	if err := stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Manifest{Manifest: m.Proto()}}); err != nil {
		return err
	}
	parts := &partWriter{stream: stream, sum: sha256.New()}
	w := bufio.NewWriterSize(parts, partSize)
	if _, err := saved.WriteTo(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	m.Size, m.SHA256 = parts.n, hex.EncodeToString(parts.sum.Sum(nil))
	o.logger.Info("snapshot saved", "index", m.Index, "bytes", m.Size, "by", caller(stream.Context()))
	return stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_End{End: m.Proto()}})
}

// partWriter sends what is written, in messages.
type partWriter struct {
	stream grpc.ServerStreamingServer[pb.SnapshotPart]
	sum    hash.Hash
	n      int64
}

func (w *partWriter) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		chunk := p[done:min(len(p), done+partSize)]
		if w.n+int64(len(chunk)) > raftstore.MaxArchiveSize {
			return done, status.Errorf(codes.ResourceExhausted, "the records are more than %d bytes: no snapshot file can hold them", int64(raftstore.MaxArchiveSize))
		}
		if err := w.stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: chunk}}); err != nil {
			return done, err
		}
		w.sum.Write(chunk)
		w.n += int64(len(chunk))
		done += len(chunk)
	}
	return len(p), nil
}

// RestoreSnapshot implements pb.OperatorServiceServer.
func (o *operatorService) RestoreSnapshot(stream grpc.ClientStreamingServer[pb.SnapshotPart, pb.RestoreSnapshotResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetManifest() == nil {
		return status.Error(codes.InvalidArgument, "the first part of a snapshot is its manifest")
	}
	m := raftstore.ManifestFromProto(first.GetManifest())
	if err := m.CheckDatacenter(o.dc); err != nil {
		return resource.StatusError(err)
	}
	o.logger.Info("snapshot is being restored", "index", m.Index, "bytes", m.Size, "created", m.CreatedAt, "by", caller(stream.Context()))
	out, err := o.store.Restore(stream.Context(), m, &partReader{recv: stream.Recv})
	switch {
	case errors.Is(err, raftstore.ErrRestoring):
		return status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		o.logger.Warn("restoring a snapshot", "err", err)
		err = resource.StatusError(err)
		if status.Code(err) == codes.Internal { // no room on the disk, say: all but an unknown outcome means that nothing changed
			err = status.Error(codes.FailedPrecondition, err.Error())
		}
		return err
	}
	return stream.SendAndClose(&pb.RestoreSnapshotResponse{Index: out.Index, Resources: uint64(out.Totals.Resources)})
}

// partReader reads the data of the parts that come.
type partReader struct {
	recv func() (*pb.SnapshotPart, error)
	rest []byte
}

func (r *partReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		part, err := r.recv()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, err
		}
		if _, ok := part.GetPart().(*pb.SnapshotPart_Data); !ok {
			return 0, status.Error(codes.InvalidArgument, "what follows a snapshot's manifest is data")
		}
		r.rest = part.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
