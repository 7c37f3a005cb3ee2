// SPDX-License-Identifier: MPL-2.0

package main

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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
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
	var stale bool
	c := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the resources of a datacenter to a file",
		Long: `Save the resources of a datacenter to FILE. The snapshot includes every write
that was acknowledged before the command. The servers keep running.

FILE is created when the snapshot is complete, with a checksum and mode 0600. An
existing file is not replaced. With "-", the complete snapshot is written to
stdout, and the summary to stderr. Until it is complete, the snapshot is in a
temporary file, in the directory TMPDIR.

Without a leader, use --stale to save the state of the called server. Writes that
only other servers have are missing. The file records that it is stale.`,
		Example: `  wanfed snapshot save dc1-$(date +%F).snap
  wanfed snapshot save - | ssh backup 'cat >dc1.snap'
  wanfed snapshot save dc1-stale.snap --stale --datacenter dc1 --server 10.0.0.7:8300`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" && isTerminal(cmd.OutOrStdout()) {
				return usagef("a snapshot is binary data and stdout is a terminal; name a file, or redirect stdout")
			}
			cc, closeAll, err := o.connect(cmd)
			if err != nil {
				return err
			}
			defer closeAll()
			open := pb.NewOperatorServiceClient(cc).SaveSnapshot
			if stale {
				open = pb.NewOperatorServiceClient(cc).SaveSnapshotHere
			}
			if args[0] == "-" {
				return o.saveTemporary(cmd, open, func(f *os.File, m raftstore.Manifest) error {
					if _, err := io.Copy(cmd.OutOrStdout(), f); err != nil {
						return fmt.Errorf("write the snapshot to stdout: %w", err)
					}
					printSummary(cmd.ErrOrStderr(), "the snapshot", m)
					return nil
				})
			}
			m, err := o.save(cmd.Context(), open, args[0], cmd.ErrOrStderr())
			if err == nil {
				printSummary(cmd.OutOrStdout(), args[0], m)
			}
			return err
		},
	}
	o.addFlags(c)
	c.Flags().BoolVar(&stale, "stale", false, "save the state of the called server, without the leader")
	return c
}

func printSummary(w io.Writer, name string, m raftstore.Manifest) {
	fmt.Fprintf(w, "saved %s: %s of %s at index %d\n", name, size(m.Size), printable(m.Datacenter), m.Index)
	if m.Stale {
		fmt.Fprintln(w, staleText(m))
	}
}

// staleText describes what a stale snapshot may lack.
func staleText(m raftstore.Manifest) string {
	text := fmt.Sprintf("it is stale: it lacks acknowledged writes that %s did not have", printable(m.Node))
	if m.Unapplied > 0 {
		text += fmt.Sprintf(
			", and up to %d that are in its log but not in its state (see: wanfed server recover --help)",
			m.Unapplied)
	}
	return text
}

// openSave is the method SaveSnapshot or SaveSnapshotHere.
type openSave func(
	context.Context, *pb.SaveSnapshotRequest, ...grpc.CallOption,
) (grpc.ServerStreamingClient[pb.SnapshotPart], error)

// saveTemporary saves a snapshot to a temporary file, calls use with it, and
// removes the file.
func (o *operator) saveTemporary(cmd *cobra.Command, open openSave,
	use func(*os.File, raftstore.Manifest) error) error {
	dir, err := os.MkdirTemp("", "wanfed-snapshot-*")
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w; set TMPDIR to a directory with free space", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "snapshot")
	m, err := o.save(cmd.Context(), open, path, cmd.ErrOrStderr())
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

// save receives a snapshot into a file. It prints the progress to w.
func (o *operator) save(
	ctx context.Context, open openSave, path string, w io.Writer,
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
			if err := m.CheckDatacenter(o.dc); err != nil {
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
	return m, fmt.Errorf("%w; nothing was saved%s", o.explain(p.ctx, "snapshot save", err), remedy)
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
	stale := "no"
	if m.Stale {
		stale = staleText(m)
	}
	err := writeFields(out.w, [][]string{
		{"File:", path},
		{"Datacenter:", m.Datacenter},
		{"Server:", m.Node + ", wanfed " + m.Version},
		{"Created:", timestamp(m.CreatedAt)},
		{"Index:", index(m.Index) + ", term " + index(m.Term)},
		{"Stale:", stale},
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
	var r restoreCommand
	c := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the resources of a datacenter by the resources of a file",
		Long: `Replace all resources of a datacenter by the resources of a snapshot file. Writes
since the snapshot are lost. A file that is damaged, of another datacenter, or of
a newer version of wanfed is refused before any change.

The command shows what it would restore, and requires a confirmation. With
--dry-run it changes nothing, and counts the resources that a restore would
create, change and delete.

The servers keep running. When the command ends, a majority of the servers has
the restored resources, and all resources have new versions. If the datacenter
is a secondary, its federated resources in the file have no effect for long: they
are replaced by those of the primary within seconds. If the datacenter is the
primary, all secondaries receive the restored federated resources.`,
		Example: `  wanfed snapshot restore dc1.snap --dry-run
  wanfed snapshot restore dc1.snap`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return r.run(cmd, args[0]) },
	}
	r.addFlags(c)
	r.confirm.addFlag(c)
	c.Flags().BoolVar(&r.dryRun, "dry-run", false, "compare the file with the datacenter, and change nothing")
	return c
}

// restoreCommand is the command "snapshot restore".
type restoreCommand struct {
	operator
	confirm confirmation
	dryRun  bool
}

func (r *restoreCommand) run(cmd *cobra.Command, path string) error {
	if err := r.checkFlags(cmd); err != nil {
		return err
	}
	if !r.dryRun {
		if err := r.confirm.check(cmd); err != nil {
			return err
		}
	}
	// The file is read twice: first to check all of it, then to use its data.
	m, totals, err := readSnapshot(path)
	if err == nil && r.dc != "" {
		err = m.CheckDatacenter(r.dc)
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
	cc, closeAll, err := r.connect(cmd)
	if err != nil {
		return err
	}
	defer closeAll()
	// Without --datacenter, only connect has set r.dc.
	if err := m.CheckDatacenter(r.dc); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	service := pb.NewOperatorServiceClient(cc)
	fmt.Fprintln(cmd.ErrOrStderr(), describeSnapshot(path, m, totals))
	if r.dryRun {
		return r.compare(cmd, service, f)
	}
	err = r.confirm.require(cmd,
		fmt.Sprintf("This replaces all resources of %s. Writes since the snapshot are lost.", r.dc))
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	resp, err := r.restore(cmd.Context(), service, m, f, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "restored %s of %s, at index %d\n", resources(resp.Resources), r.dc, resp.Index)
	return nil
}

// describeSnapshot returns the lines about a snapshot that precede its restore.
func describeSnapshot(path string, m raftstore.Manifest, totals memory.SnapshotTotals) string {
	text := fmt.Sprintf("%s: %s of %s at index %d, saved by %s at %s",
		path, resources(uint64(totals.Resources)), m.Datacenter, m.Index, m.Node, timestamp(m.CreatedAt))
	if m.Stale {
		text += "\n" + staleText(m)
	}
	return text
}

// resources returns a number of resources as text.
func resources(n uint64) string {
	if n == 1 {
		return "1 resource"
	}
	return fmt.Sprintf("%d resources", n)
}

// compare prints what a restore of the data in f would change.
func (r *restoreCommand) compare(cmd *cobra.Command, service pb.OperatorServiceClient, f io.Reader) error {
	return r.saveTemporary(cmd, service.SaveSnapshot, func(current *os.File, m raftstore.Manifest) error {
		if _, err := current.Seek(raftstore.HeaderSize, io.SeekStart); err != nil {
			return err
		}
		changes, err := memory.CompareSnapshots(current, f)
		if err != nil {
			return err
		}
		rows := [][]string{{"Type", "Created", "Changed", "Deleted", "Unchanged"}}
		for _, c := range changes {
			row := []string{c.Type}
			for _, n := range []int{c.Created, c.Changed, c.Deleted, c.Unchanged} {
				row = append(row, strconv.Itoa(n))
			}
			rows = append(rows, row)
		}
		out := printer{cmd.OutOrStdout(), outputTable}
		fmt.Fprintf(out.w, "a restore now, at index %d of %s, would change:\n\n", m.Index, m.Datacenter)
		return out.table(rows)
	})
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
		last, since, waiting, complete := int64(0), time.Now(), false, false
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
			case n == 0:
				if !waiting {
					fmt.Fprintln(w, "waiting for the servers to respond ...")
				}
				waiting = true
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
