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
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/raftstore"
)

func newSnapshot() *cobra.Command {
	c := newGroup("snapshot", "Save, inspect or restore the resources of a datacenter",
		newSnapshotSave(), newSnapshotInspect(), newSnapshotRestore())
	c.Long = `Save the resources of a datacenter to a file, inspect such a file, or restore it.

A snapshot has all resources of the datacenter at one point in time. It has no
certificates, keys or settings. "save" and "restore" need the certificate of an
operator of that datacenter.`
	c.Example = `  wanfed snapshot save dc1.snap
  wanfed snapshot inspect dc1.snap
  wanfed snapshot restore dc1.snap`
	return c
}

func newSnapshotSave() *cobra.Command {
	var o operator
	c := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the resources of a datacenter to a file",
		Long: `Save the resources of a datacenter to FILE. The snapshot includes every write
that was acknowledged before the command. The servers keep running.

FILE is created when the snapshot is complete, with a checksum and mode 0600. An
existing file is not replaced.`,
		Example: `  wanfed snapshot save dc1-$(date +%F).snap`,
		Args:    exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cc, closeAll, err := o.connect(cmd)
			if err != nil {
				return err
			}
			defer closeAll()
			m, err := o.save(cmd.Context(), pb.NewOperatorServiceClient(cc), args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "saved %s: %s of %s at index %d\n",
				args[0], size(m.Size), printable(m.Datacenter), m.Index)
			return nil
		},
	}
	o.addFlags(c)
	return c
}

// save receives a snapshot into a file. It prints the progress to w.
func (o *operator) save(
	ctx context.Context, c pb.OperatorServiceClient, path string, w io.Writer,
) (m raftstore.Manifest, err error) {
	file, err := raftstore.CreateArchive(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("directory %s of %s does not exist; create it, or choose another file",
			filepath.Dir(path), path)
	}
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, file.Abort()) }()
	p := startProgress(ctx, w, "saved", 0)
	defer p.stop()
	stream, err := c.SaveSnapshot(p.ctx, &pb.SaveSnapshotRequest{})
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
			if err := m.CheckDatacenter(o.dc); err != nil {
				return m, err
			}
			return m, file.Commit(m)
		}
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the stream ended before the snapshot was complete")
	}
	return m, fmt.Errorf("%w; nothing was saved", o.explain(p.ctx, "snapshot save", err))
}

func newSnapshotInspect() *cobra.Command {
	c := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a snapshot file and show its content",
		Long: `Check that a snapshot file is complete and undamaged, and show its origin and the
number of resources of each type. The command calls no server.`,
		Example: `  wanfed snapshot inspect dc1.snap
  wanfed snapshot inspect dc1.snap --output json | jq .manifest.datacenter`,
		Args: exactArgs("FILE"),
	}
	format := addOutput(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		m, totals, err := readSnapshot(args[0])
		if err != nil {
			return err
		}
		info := snapshotInfo{Manifest: m, Resources: totals.Resources, Types: []snapshotType{}}
		for _, t := range totals.Types {
			info.Types = append(info.Types, snapshotType(t))
		}
		out := printer{cmd.OutOrStdout(), *format}
		return out.print(info, func() error { return info.print(out, args[0]) })
	}
	return c
}

// snapshotInfo is the JSON of "snapshot inspect".
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

func (i snapshotInfo) print(out printer, path string) error {
	m := i.Manifest
	err := writeFields(out.w, [][]string{
		{"File:", path},
		{"Datacenter:", m.Datacenter},
		{"Server:", m.Node + ", wanfed " + m.Version},
		{"Created:", timestamp(m.CreatedAt)},
		{"Index:", index(m.Index) + ", term " + index(m.Term)},
		{"Data:", size(m.Size) + ", checksum ok"},
		{"SHA-256:", m.SHA256},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out.w)
	rows := [][]string{{"Type", "Resources", "Size"}}
	total := int64(0)
	for _, t := range i.Types {
		rows = append(rows, []string{t.Type, strconv.Itoa(t.Resources), size(t.Bytes)})
		total += t.Bytes
	}
	return out.table(append(rows, []string{"all", strconv.Itoa(i.Resources), size(total)}))
}

// readSnapshot reads and checks a whole file.
func readSnapshot(path string) (m raftstore.Manifest, totals memory.SnapshotTotals, err error) {
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

func newSnapshotRestore() *cobra.Command {
	var o operator
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the resources of a datacenter by the resources of a file",
		Long: `Replace all resources of a datacenter by the resources of a snapshot file. Writes
since the snapshot are lost. A file that is damaged, of another datacenter, or of
a newer version of wanfed is refused before any change.

The servers keep running. When the command ends, a majority of the servers has
the restored resources. Restored resources get new versions. A secondary soon
receives the federated resources of the primary again. After a restore in the
primary, all secondaries soon receive the restored federated resources.`,
		Example: `  wanfed snapshot inspect dc1.snap
  wanfed snapshot restore dc1.snap`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.restoreFile(cmd, args[0]) },
	}
	o.addFlags(c)
	return c
}

func (o *operator) restoreFile(cmd *cobra.Command, path string) error {
	if err := o.checkFlags(cmd); err != nil {
		return err
	}
	// The file is read twice: first to check all of it, then to send its data.
	m, _, err := readSnapshot(path)
	if err == nil && o.dc != "" {
		err = m.CheckDatacenter(o.dc)
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	f, err := settings.OpenFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(raftstore.HeaderSize, io.SeekStart); err != nil {
		return err
	}
	cc, closeAll, err := o.connect(cmd)
	if err != nil {
		return err
	}
	defer closeAll()
	// Without --datacenter, only connect has set o.dc.
	if err := m.CheckDatacenter(o.dc); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	resp, err := o.restore(cmd.Context(), pb.NewOperatorServiceClient(cc), m, f, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	plural := "s"
	if resp.Resources == 1 {
		plural = ""
	}
	fmt.Fprintf(cmd.OutOrStdout(), "restored %d resource%s of %s, at index %d\n", resp.Resources, plural, o.dc, resp.Index)
	return nil
}

// restorePart is the size of the data of one message, in bytes.
const restorePart = 256 << 10

// restore sends a snapshot to a server. It prints the progress to w.
func (o *operator) restore(
	ctx context.Context, c pb.OperatorServiceClient, m raftstore.Manifest, data io.Reader, w io.Writer,
) (*pb.RestoreSnapshotResponse, error) {
	const operation = "snapshot restore"
	p := startProgress(ctx, w, "sent", m.Size)
	defer p.stop()
	stream, err := c.RestoreSnapshot(p.ctx)
	if err != nil {
		return nil, o.explain(p.ctx, operation, err)
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
			// The end of p cancels the stream, and the server discards the data.
			return nil, fmt.Errorf("read the snapshot: %w; nothing was changed", err)
		}
	}
	resp, err := stream.CloseAndRecv()
	if err == nil {
		return resp, nil
	}
	outcome := "the outcome is unknown: either no resource was changed, or all are as in the file"
	refusals := []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unimplemented}
	if slices.Contains(refusals, status.Code(err)) || errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
		outcome = "nothing was changed"
	}
	return nil, fmt.Errorf("%w; %s", o.explain(p.ctx, operation, err), outcome)
}

const (
	progressInterval = 2 * time.Second
	transferTimeout  = time.Minute      // without transferred data, before all data is sent
	restoreTimeout   = 30 * time.Minute // for the servers to restore, after all data is sent
)

// progress prints the progress of a transfer and cancels ctx when the
// transfer stalls.
type progress struct {
	ctx   context.Context
	stop  func() // joins the goroutine
	bytes atomic.Int64
}

// add reports n transferred bytes.
func (p *progress) add(n int) { p.bytes.Add(int64(n)) }

// startProgress starts the progress of a transfer of total bytes. If total is
// unknown, it is 0. The caller calls stop at the end.
func startProgress(ctx context.Context, w io.Writer, verb string, total int64) *progress {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &progress{ctx: ctx}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(progressInterval)
		defer tick.Stop()
		last, since, complete := int64(0), time.Now(), false
		for {
			var now time.Time
			select {
			case <-ctx.Done():
				return
			case now = <-tick.C:
			}
			n := p.bytes.Load()
			if n != last {
				last, since = n, now
			}
			timeout := transferTimeout
			switch {
			case total == 0:
				fmt.Fprintf(w, "%s %s ...\n", verb, size(n))
			case n < total:
				fmt.Fprintf(w, "%s %s of %s ...\n", verb, size(n), size(total))
			default:
				timeout = restoreTimeout
				if !complete {
					fmt.Fprintf(w, "%s all of %s; waiting for the servers to restore it ...\n", verb, size(total))
				}
				complete = true
			}
			if now.Sub(since) > timeout {
				cancel(fmt.Errorf("no data was transferred for %v", timeout))
			}
		}
	})
	p.stop = func() {
		cancel(nil)
		wg.Wait()
	}
	return p
}
