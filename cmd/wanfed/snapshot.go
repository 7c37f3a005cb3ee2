// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/raftstore"
)

func newSnapshot() *cobra.Command {
	c := newGroup("snapshot", "Save the records of a datacenter to a file, look at it, or restore it",
		newSnapshotSave(), newSnapshotInspect(), newSnapshotRestore())
	c.Long = `Save the records of a datacenter to a file, look at such a file, or restore it.

A snapshot has all records that the datacenter's servers keep, as they were at one moment. It has no certificates, keys
or settings. Saving and restoring take an operator's certificate of that datacenter; inspecting takes nothing.`
	c.Example = `  wanfed snapshot save dc1.snap --dc dc1 --server 10.0.0.5:8300
  wanfed snapshot inspect dc1.snap
  wanfed snapshot restore dc1.snap --dc dc1 --server 10.0.0.5:8300`
	return c
}

// oneFile demands the name of a file.
func oneFile(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0 || args[0] == "":
		return usagef("say which file: %s; see: %s --help", cmd.UseLine(), cmd.CommandPath())
	case len(args) > 1:
		return usagef("unexpected argument %q: one file at a time; see: %s --help", args[1], cmd.CommandPath())
	}
	return nil
}

func newSnapshotSave() *cobra.Command {
	var o operatorCall
	c := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the records of a datacenter to a file",
		Long: `Save the records of a datacenter to FILE, with all that was written before. The servers go on working meanwhile.

FILE is there only when it is whole; then it has a checksum, and mode 0600. One that exists is not replaced.`,
		Example: `  wanfed snapshot save dc1-$(date +%F).snap --dc dc1 --server 10.0.0.5:8300`,
		Args:    oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, done, err := o.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			m, err := o.save(cmd.Context(), c, args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "saved %s: %s of %s at index %d\n", args[0], size(m.Size), printable(m.Datacenter), m.Index)
			return nil
		},
	}
	o.addFlags(c, "the `datacenter`")
	return c
}

func (o *operatorCall) save(ctx context.Context, c pb.OperatorServiceClient, path string, w io.Writer) (_ raftstore.Manifest, err error) {
	file, err := raftstore.CreateArchive(path)
	if errors.Is(err, fs.ErrNotExist) {
		return raftstore.Manifest{}, fmt.Errorf("folder %s, of %s, does not exist; make it, or choose another file", filepath.Dir(path), path)
	}
	if err != nil {
		return raftstore.Manifest{}, err
	}
	defer func() { err = errors.Join(err, file.Abort()) }()
	ctx, moved, stop := watchProgress(ctx, w, "saved", 0)
	defer stop()
	const what = "snapshot save"
	stream, err := c.SaveSnapshot(ctx, &pb.SaveSnapshotRequest{})
	for err == nil {
		var part *pb.SnapshotPart
		if part, err = stream.Recv(); err != nil {
			break
		}
		if data := part.GetData(); data != nil {
			if _, werr := file.Write(data); werr != nil {
				return raftstore.Manifest{}, werr
			}
			moved(len(data))
		}
		if end := part.GetEnd(); end != nil {
			m := raftstore.ManifestFromProto(end)
			if err := m.CheckDatacenter(o.dc); err != nil {
				return m, err
			}
			return m, file.Commit(m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it ended before its end")
	}
	return raftstore.Manifest{}, fmt.Errorf("%w; nothing was saved", o.explain(ctx, what, err))
}

func newSnapshotInspect() *cobra.Command {
	var f format = formatTable
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a snapshot file, and say what is in it",
		Long: `Check that snapshot file FILE is whole and undamaged, and say where it is from and how many records of each type it has. It
asks no server.`,
		Example: `  wanfed snapshot inspect dc1.snap
  wanfed snapshot inspect dc1.snap --format json | jq .manifest.datacenter`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			m, totals, err := readSnapshot(args[0])
			if err != nil {
				return err
			}
			out := snapshotInfo{Manifest: m, Resources: totals.Resources, Types: []snapshotType{}}
			for _, t := range totals.Types {
				out.Types = append(out.Types, snapshotType(t))
			}
			return printer{cmd.OutOrStdout(), f}.print(out, func(w io.Writer) error { return out.table(w, args[0]) })
		},
	}
	addFormat(c, &f)
	return c
}

// snapshotInfo is what there is in a snapshot file, as JSON.
type snapshotInfo struct {
	Manifest  raftstore.Manifest `json:"manifest"`
	Resources int                `json:"resources"`
	Types     []snapshotType     `json:"types"`
}

type snapshotType struct {
	Type      string `json:"type"`
	Resources int    `json:"resources"`
	Bytes     int64  `json:"bytes"`
}

func (i snapshotInfo) table(w io.Writer, path string) error {
	m := i.Manifest
	err := writeTable(w, [][]string{
		{"File:", path},
		{"Datacenter:", m.Datacenter},
		{"Server:", m.Node + ", wanfed " + m.Version},
		{"Created:", m.CreatedAt.UTC().Format(time.RFC3339)},
		{"Index:", index(m.Index) + ", term " + index(m.Term)},
		{"Data:", size(m.Size) + ", checksum ok"},
		{"SHA-256:", m.SHA256},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows := [][]string{{"Type", "Records", "Size"}}
	total := int64(0)
	for _, t := range i.Types {
		rows = append(rows, []string{t.Type, strconv.Itoa(t.Resources), size(t.Bytes)})
		total += t.Bytes
	}
	return writeTable(w, append(rows, []string{"all", strconv.Itoa(i.Resources), size(total)}))
}

// readSnapshot checks a file to its end.
func readSnapshot(path string) (raftstore.Manifest, memory.SnapshotTotals, error) {
	f, err := openFile(path)
	if err != nil {
		return raftstore.Manifest{}, memory.SnapshotTotals{}, err
	}
	defer f.Close()
	m, totals, err := raftstore.ReadArchive(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return m, totals, err
}

func newSnapshotRestore() *cobra.Command {
	var o operatorCall
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the records of a datacenter by those of a file",
		Long: `Replace all records of a datacenter by those of snapshot file FILE. What was written since it was saved is lost. A file that
is damaged, of another datacenter, or of a newer version of wanfed is refused before anything changes.

The servers go on running, and most of them have the restored records when the command ends, the others soon after. Records
get new versions, so that nobody takes them for what they were. Records that belong to the federation follow the primary: in a secondary they
soon are again what they are there; in the primary, all secondaries soon have what was restored.`,
		Example: `  wanfed snapshot inspect dc1.snap
  wanfed snapshot restore dc1.snap --dc dc1 --server 10.0.0.5:8300`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			m, _, err := readSnapshot(args[0])
			if err == nil {
				err = m.CheckDatacenter(o.dc)
			}
			if err != nil {
				return fmt.Errorf("%w; nothing was changed", err)
			}
			f, err := openFile(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			if _, err := f.Seek(raftstore.HeaderSize, io.SeekStart); err != nil {
				return err
			}
			c, done, err := o.connect(cmd)
			if err != nil {
				return err
			}
			defer done()
			resp, err := o.restore(cmd.Context(), c, m, f, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			records := "records"
			if resp.Resources == 1 {
				records = "record"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "restored %d %s of %s, at index %d\n", resp.Resources, records, o.dc, resp.Index)
			return nil
		},
	}
	o.addFlags(c, "the `datacenter`")
	return c
}

// restorePart is how much data goes into one message, in bytes.
const restorePart = 256 << 10

func (o *operatorCall) restore(ctx context.Context, c pb.OperatorServiceClient, m raftstore.Manifest, data io.Reader, w io.Writer) (*pb.RestoreSnapshotResponse, error) {
	ctx, moved, stop := watchProgress(ctx, w, "sent", m.Size)
	defer stop()
	const what = "snapshot restore"
	stream, err := c.RestoreSnapshot(ctx)
	if err != nil {
		return nil, o.explain(ctx, what, err)
	}
	err = stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Manifest{Manifest: m.Proto()}})
	for buf := make([]byte, restorePart); err == nil; {
		var n int
		if n, err = io.ReadFull(data, buf); n > 0 {
			if serr := stream.Send(&pb.SnapshotPart{Part: &pb.SnapshotPart_Data{Data: buf[:n]}}); serr != nil {
				break // the answer says why
			}
			moved(n)
		}
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("read the snapshot: %w; nothing was changed", err) // the stream is cut off: the server refuses what has come
		}
	}
	resp, err := stream.CloseAndRecv()
	if err == nil {
		return resp, nil
	}
	switch code := status.Code(err); {
	case code == codes.InvalidArgument, code == codes.FailedPrecondition, code == codes.PermissionDenied, code == codes.Unimplemented,
		errors.Is(resource.FromStatus(err), resource.ErrNotLeader):
		return nil, fmt.Errorf("%w; nothing was changed", o.explain(ctx, what, err))
	}
	return nil, fmt.Errorf("%w; it may be restored or not: the records are all as they were, or all as in the file", o.explain(ctx, what, err))
}
