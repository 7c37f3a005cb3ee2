// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"slices"
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
	// partSize is the size of the data of one message, in bytes.
	partSize = 256 << 10
	// maxSaves bounds the snapshots that are saved at a time.
	maxSaves = 2
)

// saveStream is the stream of a caller that saves a snapshot.
type saveStream = grpc.ServerStreamingServer[pb.SnapshotPart]

// SaveSnapshot implements pb.OperatorServiceServer. It blocks while the caller
// does not read. Keepalive disconnects a caller that does not respond.
func (s *Service) SaveSnapshot(_ *pb.SaveSnapshotRequest, stream saveStream) error {
	return s.save(stream, false, s.Store.Snapshot)
}

// SaveSnapshotHere implements pb.OperatorServiceServer. It needs no leader.
func (s *Service) SaveSnapshotHere(_ *pb.SaveSnapshotRequest, stream saveStream) error {
	return s.save(stream, true, func(context.Context) (*raftstore.Snapshot, error) {
		saved, err := s.Store.SnapshotHere()
		if err == nil && saved.Index() == 0 {
			err = status.Errorf(codes.FailedPrecondition,
				"%s has applied nothing since its start, because it found no leader; "+
					"its log has %d entries, which are recovered offline: see wanfed server recover --help", s.Node,
				saved.Unapplied)
		}
		return saved, err
	})
}

// save sends the snapshot that take returns.
func (s *Service) save(
	stream saveStream, stale bool, take func(context.Context) (*raftstore.Snapshot, error),
) error {
	select {
	case s.saves <- struct{}{}:
		defer func() { <-s.saves }()
	default:
		return status.Errorf(codes.ResourceExhausted,
			"%d saves of snapshots are in progress, which is the limit; try again later", maxSaves)
	}
	saved, err := take(stream.Context())
	if err != nil {
		return resource.StatusError(err)
	}
	m := raftstore.Manifest{
		Version: version.Version, Datacenter: s.DC, Node: s.Node, CreatedAt: time.Now(),
		Index: saved.Index(), Term: saved.Term, Stale: stale, Unapplied: saved.Unapplied,
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
	s.Logger.Info("snapshot saved", "index", m.Index, "bytes", m.Size, "stale", stale, "operator",
		operatorName(stream.Context()))
	return stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_End{End: m.Proto()}})
}

// partWriter sends written data in messages of at most partSize bytes.
type partWriter struct {
	stream saveStream
	sum    hash.Hash // of the data
	n      int64     // bytes sent
}

func (w *partWriter) Write(p []byte) (int, error) {
	written := 0
	for chunk := range slices.Chunk(p, partSize) {
		if w.n+int64(len(chunk)) > raftstore.MaxArchiveSize {
			return written, status.Errorf(codes.ResourceExhausted,
				"the resources are larger than the maximum size of a snapshot, %d bytes",
				int64(raftstore.MaxArchiveSize))
		}
		if err := w.stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: chunk}}); err != nil {
			return written, err
		}
		w.sum.Write(chunk)
		w.n += int64(len(chunk))
		written += len(chunk)
	}
	return written, nil
}

// RestoreSnapshot implements pb.OperatorServiceServer.
func (s *Service) RestoreSnapshot(stream grpc.ClientStreamingServer[pb.SnapshotPart,
	pb.RestoreSnapshotResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetManifest() == nil {
		return status.Error(codes.InvalidArgument, "the first part of a snapshot must be its manifest")
	}
	m := raftstore.ManifestFromProto(first.GetManifest())
	if err := m.CheckDatacenter(s.DC); err != nil {
		return resource.StatusError(err)
	}
	s.Logger.Info("snapshot restore started", "index", m.Index, "bytes", m.Size, "created", m.CreatedAt,
		"operator", operatorName(stream.Context()))
	out, err := s.Store.Restore(stream.Context(), m, &partReader{recv: stream.Recv})
	switch {
	case errors.Is(err, raftstore.ErrRestoring):
		return status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		s.Logger.Warn("cannot restore a snapshot", "err", err)
		err = resource.StatusError(err)
		if status.Code(err) == codes.Internal { // for example a full disk; nothing was changed
			err = status.Error(codes.FailedPrecondition, err.Error())
		}
		return err
	}
	return stream.SendAndClose(&pb.RestoreSnapshotResponse{Index: out.Index, Resources: uint64(out.Resources)})
}

// partReader reads the data of received messages.
type partReader struct {
	recv func() (*pb.SnapshotPart, error)
	rest []byte
}

func (r *partReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		part, err := r.recv()
		if err != nil {
			return 0, err // io.EOF after the last message
		}
		switch part.GetPart().(type) {
		case *pb.SnapshotPart_Data:
		case *pb.SnapshotPart_End: // of a snapshot that another server sends
			return 0, io.EOF
		default:
			return 0, status.Error(codes.InvalidArgument, "only data may follow the manifest of a snapshot")
		}
		r.rest = part.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
