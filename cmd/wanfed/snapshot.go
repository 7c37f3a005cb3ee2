// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/raftstore"
	"github.com/wanfed/wanfed/server/snapshot"
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
			transfer := o.transfer(cc, cmd.ErrOrStderr())
			if args[0] == "-" {
				return transfer.SaveTemporary(cmd.Context(), stale, func(f *os.File, m raftstore.Manifest) error {
					if _, err := io.Copy(cmd.OutOrStdout(), f); err != nil {
						return fmt.Errorf("write the snapshot to stdout: %w", err)
					}
					printSummary(cmd.ErrOrStderr(), "the snapshot", m)
					return nil
				})
			}
			m, err := transfer.Save(cmd.Context(), stale, args[0])
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

// transfer returns a Transfer over a connection of o, which prints its progress
// to w.
func (o *operator) transfer(cc grpc.ClientConnInterface, w io.Writer) snapshot.Transfer {
	return snapshot.Transfer{
		Service: pb.NewOperatorServiceClient(cc), DC: o.dc, Explain: o.explain, Progress: w,
	}
}

func printSummary(w io.Writer, name string, m raftstore.Manifest) {
	fmt.Fprintf(w, "saved %s: %s of %s at index %d\n", name, output.Size(m.Size), output.Printable(m.Datacenter), m.Index)
	if m.Stale {
		fmt.Fprintln(w, staleText(m))
	}
}

// staleText describes what a stale snapshot may lack.
func staleText(m raftstore.Manifest) string {
	text := fmt.Sprintf("it is stale: it lacks acknowledged writes that %s did not have", output.Printable(m.Node))
	if m.Unapplied > 0 {
		text += fmt.Sprintf(
			", and up to %d that are in its log but not in its state (see: wanfed server recover --help)",
			m.Unapplied)
	}
	return text
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
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		info, err := snapshot.Inspect(args[0])
		if err != nil {
			return err
		}
		out := printer()
		return out.Print(info, func() error { return printInfo(out, args[0], info) })
	}
	return c
}

func printInfo(out output.Printer, path string, i snapshot.Info) error {
	m := i.Manifest
	stale := "no"
	if m.Stale {
		stale = staleText(m)
	}
	err := output.WriteFields(out.W, [][]string{
		{"File:", path},
		{"Datacenter:", m.Datacenter},
		{"Server:", m.Node + ", wanfed " + m.Version},
		{"Created:", output.Timestamp(m.CreatedAt)},
		{"Index:", index(m.Index) + ", term " + index(m.Term)},
		{"Stale:", stale},
		{"Data:", output.Size(m.Size) + ", checksum ok"},
		{"SHA-256:", m.SHA256},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out.W)
	rows := [][]string{{"Type", "Resources", "Size"}}
	total := int64(0)
	for _, t := range i.Types {
		rows = append(rows, []string{t.Type, strconv.Itoa(t.Resources), output.Size(t.Bytes)})
		total += t.Bytes
	}
	return out.Table(append(rows, []string{"all", strconv.Itoa(i.Resources), output.Size(total)}))
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
	if err := r.confirm.check(cmd); !r.dryRun && err != nil {
		return err
	}
	// The file is read twice: first to check all of it, then to use its data.
	m, totals, err := snapshot.Read(path)
	if err == nil && r.dc != "" {
		err = m.CheckDatacenter(r.dc)
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	f, err := snapshot.OpenData(path)
	if err != nil {
		return err
	}
	defer f.Close()
	cc, closeAll, err := r.connect(cmd)
	if err != nil {
		return err
	}
	defer closeAll()
	// Without --datacenter, only connect has set r.dc.
	if err := m.CheckDatacenter(r.dc); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	transfer := r.transfer(cc, cmd.ErrOrStderr())
	fmt.Fprintln(cmd.ErrOrStderr(), describeSnapshot(path, m, totals))
	if r.dryRun {
		return compareSnapshot(cmd, transfer, f)
	}
	err = r.confirm.require(cmd,
		fmt.Sprintf("This replaces all resources of %s. Writes since the snapshot are lost.", r.dc))
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	resp, err := transfer.Restore(cmd.Context(), m, f)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "restored %s of %s, at index %d\n", resources(resp.Resources), r.dc, resp.Index)
	return nil
}

// describeSnapshot returns the lines about a snapshot that precede its restore.
func describeSnapshot(path string, m raftstore.Manifest, totals memory.SnapshotTotals) string {
	text := fmt.Sprintf("%s: %s of %s at index %d, saved by %s at %s",
		path, resources(uint64(totals.Resources)), m.Datacenter, m.Index, m.Node, output.Timestamp(m.CreatedAt))
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

// compareSnapshot prints what a restore of data would change.
func compareSnapshot(cmd *cobra.Command, transfer snapshot.Transfer, data io.Reader) error {
	m, changes, err := transfer.Compare(cmd.Context(), data)
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
	out := output.Printer{W: cmd.OutOrStdout(), Format: output.Table}
	fmt.Fprintf(out.W, "a restore now, at index %d of %s, would change:\n\n", m.Index, m.Datacenter)
	return out.Table(rows)
}
