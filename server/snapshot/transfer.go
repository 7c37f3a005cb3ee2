// SPDX-License-Identifier: MPL-2.0

package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/wanfed/wanfed/resource/memory"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// Transfer carries snapshots between files and a server.
type Transfer struct {
	Service pb.OperatorServiceClient
	DC      string // datacenter of the server
	// Explain adds the call, which operation names, and the server to err.
	Explain func(ctx context.Context, operation string, err error) error
	// Progress receives a line every two seconds.
	Progress io.Writer
}

// SaveTemporary is Save to a temporary file. It calls use with the file, and then
// removes the file.
func (t Transfer) SaveTemporary(ctx context.Context, stale bool, use func(*os.File, raftstore.Manifest) error) error {
	dir, err := os.MkdirTemp("", "wanfed-snapshot-*")
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w; set TMPDIR to a directory with free space", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "snapshot")
	m, err := t.Save(ctx, stale, path)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return use(f, m)
}

// Save receives a snapshot into a new file. An incomplete file is removed. With
// stale, the snapshot has the state of the called server, without the leader.
func (t Transfer) Save(ctx context.Context, stale bool, path string) (m raftstore.Manifest, err error) {
	file, err := raftstore.CreateArchive(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("directory %s of %s does not exist; create it, or choose another file",
			filepath.Dir(path), path)
	}
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, file.Abort()) }()
	p := startProgress(ctx, t.Progress, "saved", 0)
	defer p.stop()
	open := t.Service.SaveSnapshot
	if stale {
		open = t.Service.SaveSnapshotHere
	}
	stream, err := open(p.ctx, &pb.SaveSnapshotRequest{})
	for err == nil {
		var part *pb.SnapshotPart
		if part, err = stream.Recv(); err != nil {
			break
		}
		if data := part.GetData(); data != nil {
			if _, werr := file.Write(data); werr != nil {
				return m, werr
			}
			p.add(len(data))
		}
		if end := part.GetEnd(); end != nil {
			m = raftstore.ManifestFromProto(end)
			if err := m.CheckDatacenter(t.DC); err != nil {
				return m, err
			}
			return m, file.Commit(m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the stream ended before the snapshot was complete")
	}
	remedy := ""
	if errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
		remedy = "; to save the state of the called server, add --stale"
	}
	return m, fmt.Errorf("%w; nothing was saved%s", t.Explain(p.ctx, "snapshot save", err), remedy)
}

// restorePart is the size of the data of one message, in bytes.
const restorePart = 256 << 10

// Restore sends the snapshot m, with the data of OpenData, to a server. The error
// states whether resources may have changed.
func (t Transfer) Restore(
	ctx context.Context, m raftstore.Manifest, data io.Reader,
) (*pb.RestoreSnapshotResponse, error) {
	const operation = "snapshot restore"
	p := startProgress(ctx, t.Progress, "sent", m.Size)
	defer p.stop()
	stream, err := t.Service.RestoreSnapshot(p.ctx)
	if err != nil {
		return nil, t.Explain(p.ctx, operation, err)
	}
	err = stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Manifest{Manifest: m.Proto()}})
	for buf := make([]byte, restorePart); err == nil; {
		var n int
		if n, err = io.ReadFull(data, buf); n > 0 {
			if serr := stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: buf[:n]}}); serr != nil {
				break // CloseAndRecv returns the reason
			}
			p.add(n)
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			// The end of p cancels the stream, and the server discards the
			// data.
			return nil, fmt.Errorf("read the snapshot: %w; nothing was changed", err)
		}
	}
	resp, err := stream.CloseAndRecv()
	if err == nil {
		return resp, nil
	}
	outcome := "the outcome is unknown: either no resource was changed, or all are as in the file"
	refusals := []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied,
		codes.Unimplemented}
	if slices.Contains(refusals, status.Code(err)) || errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
		outcome = "nothing was changed"
	}
	return nil, fmt.Errorf("%w; %s", t.Explain(p.ctx, operation, err), outcome)
}

// Compare returns what a restore of the data of OpenData would change now, and
// the manifest of the present state.
func (t Transfer) Compare(
	ctx context.Context, data io.Reader,
) (now raftstore.Manifest, changes []memory.TypeChange, err error) {
	err = t.SaveTemporary(ctx, false, func(current *os.File, m raftstore.Manifest) error {
		if _, err := current.Seek(raftstore.HeaderSize, io.SeekStart); err != nil {
			return err
		}
		now = m
		changes, err = memory.CompareSnapshots(current, data)
		return err
	})
	return now, changes, err
}

// Read reads and checks a whole file.
func Read(path string) (m raftstore.Manifest, totals memory.SnapshotTotals, err error) {
	f, err := settings.OpenFile(path)
	if err != nil {
		return m, totals, err
	}
	defer f.Close()
	if m, totals, err = raftstore.ReadArchive(bufio.NewReaderSize(f, 1<<20)); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return m, totals, err
}

// OpenData opens a file and returns its data, without the header. The caller
// closes the file.
func OpenData(path string) (*os.File, error) {
	f, err := settings.OpenFile(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(raftstore.HeaderSize, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Info is the content of a snapshot file.
type Info struct {
	Manifest  raftstore.Manifest `json:"manifest"`
	Resources int                `json:"resources"`
	Types     []TypeInfo         `json:"types"`
}

// TypeInfo is one type of an Info.
type TypeInfo struct {
	Type      string `json:"type"`
	Resources int    `json:"resources"`
	Bytes     int64  `json:"bytes"`
}

// Inspect reads and checks a whole file, and returns its content.
func Inspect(path string) (Info, error) {
	m, totals, err := Read(path)
	info := Info{Manifest: m, Resources: totals.Resources, Types: []TypeInfo{}}
	for _, t := range totals.Types {
		info.Types = append(info.Types, TypeInfo(t))
	}
	return info, err
}
