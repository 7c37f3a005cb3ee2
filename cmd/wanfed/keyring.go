// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/server/keyring"
)

func newKeyring() *cobra.Command {
	c := newGroup("keyring", "Create and change gossip encryption keys",
		newKeyringGenerate(), newKeyringInstall(), newKeyringUse(), newKeyringRemove(), newKeyringList())
	c.Long = `Create gossip keys, and change them on all servers of the federation.

Gossip uses TLS connections between servers with certificates and needs no keys.
With keys, gossip is encrypted a second time (AES-256-GCM). A server then needs a
key in addition to its certificate. All servers have the same keyring, for the
LAN pools and the WAN pool. Gossip is encrypted with the primary key, and any key
of the keyring decrypts it. Each server stores the keyring in its data directory.

To change the key without losing gossip:

  install   adds the new key to the keyring of every server
  use       makes the new key the primary key, once every alive server has it
  remove    removes the old key, once every server uses the new key

Each command lists the servers that it did not reach. When such a server is
reachable again, it receives the new keyring from any other server, if it still
has one of the keys. Until then "remove" is refused without --force. A server
without a common key first needs one: install --node.

To start: create a key, write it to a file (mode 0600) on each server, and start
every server with --encrypt-file. If servers are running, restart each of them
three times, one server after the other:

  1. with --encrypt-file, --encrypt-verify-incoming=false and
     --encrypt-verify-outgoing=false
  2. with --encrypt-file and --encrypt-verify-incoming=false
  3. with --encrypt-file

From then on the keyring in the data directory takes precedence. The file is for
new servers only: write the new key to it after a change. To end encryption, take
the steps in reverse order. Then start each server without --encrypt-file and
without keyring.json in its data directory.

Keys are identified by fingerprints, which are not secret. Changes need the
certificate of an operator.`
	c.Example = `  wanfed keyring generate --file gossip.key
  wanfed keyring install - <gossip.key
  wanfed keyring use FINGERPRINT
  wanfed keyring list
  wanfed keyring remove OLD-FINGERPRINT`
	return c
}

// keyArg requires one argument. Errors refer to the argument by name.
func keyArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usagef("%s is required, or - for stdin; see: %s --help", name, cmd.CommandPath())
		case len(args) > 1:
			return usagef("one key at a time, not %d; see: %s --help", len(args), cmd.CommandPath())
		}
		return nil
	}
}

// maxKeyLine limits a key on stdin, in bytes.
const maxKeyLine = 4096

// readKey returns the argument, or the content of stdin if it is "-".
func readKey(cmd *cobra.Command, arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxKeyLine))
	if err != nil {
		return "", fmt.Errorf("read key from stdin: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func newKeyringGenerate() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "generate",
		Short: "Create a random gossip key",
		Long: `Create a random gossip key, 32 bytes in base64. Print it, or write it to a new
file with mode 0600. The command calls no server. Consul accepts the same keys.`,
		Example: `  wanfed keyring generate --file /etc/wanfed/gossip.key`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k := gossip.NewKey()
			if file == "" {
				fmt.Fprintln(cmd.OutOrStdout(), k.Base64())
				return nil
			}
			if err := saveKey(file, k); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s has key %s\n", file, k.Fingerprint())
			return nil
		},
	}
	c.Flags().StringVar(&file, "file", "", "new `file` for the key (default: stdout)")
	return c
}

func saveKey(file string, k gossip.Key) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists and is not overwritten; move it away, or choose another name", file)
	}
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	_, err = f.WriteString(k.Base64() + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write key: %w", errors.Join(err, os.Remove(file)))
	}
	return nil
}

func newKeyringInstall() *cobra.Command {
	o := operator{inPrimary: true}
	c := &cobra.Command{
		Use:   "install KEY",
		Short: "Add a key to the keyring of every server",
		Long: `Add a key to the keyring of every server of the federation. The servers then
decrypt gossip that is encrypted with the key. KEY is the output of "wanfed keyring
generate". With "-" the key is read from stdin, hidden from other users of the
machine.

A server of the primary makes the change. The exit status is 1 if a server was
not reached. Such a server receives the keyring from another server when it is
reachable again. Repeat the command to check all servers.

With --node, the command adds the key only to server NODE of datacenter
--datacenter. Use --node for a server that has no key in common with the other
servers, and KEY is a key of the other servers. They can then send the whole
keyring to the server.`,
		Example: `  wanfed keyring install - <gossip.key
  wanfed keyring install - --datacenter dc3 --node srv2 --server 192.0.2.7:8443 <gossip.key`,
		Args:              keyArg("KEY"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := readKey(cmd, args[0])
			if err != nil {
				return err
			}
			key, err := gossip.ParseKey(text)
			if err != nil {
				if _, noFile := os.Stat(args[0]); args[0] != "-" && noFile == nil {
					return usagef("KEY is the name of a file; to use the key in it: %s - <FILE", cmd.CommandPath())
				}
				return usageError{err}
			}
			if o.node != "" {
				return giveKey(cmd, &o, key)
			}
			return changeKeyring(cmd, &o, pb.ChangeKeyringRequest_OP_INSTALL, key.Base64(), false)
		},
	}
	o.addFlags(c)
	c.Flags().StringVar(&o.node, "node", "", "`name` of the only server that gets the key (default: all servers)")
	_ = c.RegisterFlagCompletionFunc("node", completeServers)
	return c
}

// giveKey installs a key on the server o.node.
func giveKey(cmd *cobra.Command, o *operator, key gossip.Key) error {
	s, err := callServer(cmd, o, "keyring install", "wanfed keyring list",
		func(ctx context.Context, cc *grpc.ClientConn) (*pb.ServerKeyring, error) {
			return pb.NewKeyringServiceClient(cc).Give(ctx, &pb.GiveKeyRequest{Key: key.Base64()})
		})
	if err == nil {
		fmt.Fprintf(cmd.OutOrStdout(),
			"%s.%s has key %s and receives the keyring when it reaches another server; see: wanfed keyring list\n",
			output.Printable(s.Node), output.Printable(s.Datacenter), key.Fingerprint())
	}
	return err
}

func newKeyringUse() *cobra.Command {
	return newKeyringChange(pb.ChangeKeyringRequest_OP_USE, &cobra.Command{
		Use:   "use KEY",
		Short: "Make a key the primary key",
		Long: `Make a key of the keyring the primary key on every server: gossip is encrypted
with it. KEY is the key, its fingerprint, or "-" for stdin. The command is refused
while an alive server does not have the key.`,
		Example: `  wanfed keyring use 1f7c0e5b9a3d2468`,
	}, "use the key although alive servers do not have it; these servers lose gossip")
}

func newKeyringRemove() *cobra.Command {
	return newKeyringChange(pb.ChangeKeyringRequest_OP_REMOVE, &cobra.Command{
		Use:   "remove KEY",
		Short: "Remove a key from the keyring of every server",
		Long: `Remove a key from the keyring of every server. KEY is the key, its fingerprint, or
"-" for stdin. The primary key cannot be removed. The command is refused if a
server, alive or not, possibly has only this key. Such a server missed an earlier
change, and can receive the new keyring only with a key that the others have.`,
		Example: `  wanfed keyring remove 1f7c0e5b9a3d2468`,
	}, "remove the key although servers may have no other key; these servers lose gossip")
}

// newKeyringChange completes c, a command that changes the keyring of all
// servers. forceHelp is the help text of --force.
func newKeyringChange(op pb.ChangeKeyringRequest_Op, c *cobra.Command, forceHelp string) *cobra.Command {
	o := operator{inPrimary: true}
	var forced bool
	c.Args = keyArg("KEY or its fingerprint")
	c.ValidArgsFunction = cobra.NoFileCompletions
	c.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := readKey(cmd, args[0])
		if err != nil {
			return err
		}
		return changeKeyring(cmd, &o, op, key, forced)
	}
	o.addFlags(c)
	c.Flags().BoolVar(&forced, "force", false, forceHelp)
	return c
}

func changeKeyring(cmd *cobra.Command, o *operator, op pb.ChangeKeyringRequest_Op, key string, force bool) error {
	report, err := callServer(cmd, o, "keyring "+cmd.Name(), "wanfed keyring list",
		func(ctx context.Context, cc *grpc.ClientConn) (*pb.KeyringReport, error) {
			req := &pb.ChangeKeyringRequest{Op: op, Key: key, Force: force}
			return pb.NewKeyringServiceClient(cc).Change(ctx, req)
		})
	if err != nil {
		return err
	}
	out := output.Printer{W: cmd.OutOrStdout(), Format: output.Table}
	if err := out.Table(serverKeyRows(keyring.NewView(report))); err != nil {
		return err
	}
	if report.Refused != "" {
		return errors.New(output.Printable(report.Refused))
	}
	return printChange(out.W, op, report)
}

// printChange prints the result of a change. It returns an error if a server
// missed the change.
func printChange(w io.Writer, op pb.ChangeKeyringRequest_Op, report *pb.KeyringReport) error {
	missed := keyring.Missed(report)
	result := map[pb.ChangeKeyringRequest_Op]string{
		pb.ChangeKeyringRequest_OP_INSTALL: "installed",
		pb.ChangeKeyringRequest_OP_USE:     "in use",
		pb.ChangeKeyringRequest_OP_REMOVE:  "removed",
	}[op]
	if !report.Changed {
		result = "unchanged"
	}
	keys := fmt.Sprintf("%d keys", len(report.Fingerprints))
	if len(report.Fingerprints) == 1 {
		keys = "1 key"
	}
	all := len(report.Servers)
	fmt.Fprintf(w, "\n%s: %d of %d servers have version %d of the keyring, with %s, primary key %s\n",
		result, all-len(missed), all, report.Version, keys, output.Printable(keyring.FirstOf(report.Fingerprints)))
	if len(missed) > 0 {
		return fmt.Errorf("%d of %d servers missed the change: %s; "+
			"they receive it from another server when they are reachable, if they have a key of the keyring",
			len(missed), all, output.Printable(strings.Join(missed, ", ")))
	}
	return nil
}

func newKeyringList() *cobra.Command {
	var show bool
	c := addOperatorRead(&cobra.Command{
		Use:   "list",
		Short: "List the keys of all servers",
		Long: `List the keys of every server of the federation. The called server collects them.
Problem is set for a server that did not respond, or whose keys differ from the
keys of the called server. The node "*" stands for a datacenter without a known
server.

Keys are printed as fingerprints. With --show-keys the keys of the called server
are printed as well. The exit status is 0 if the called server responds.`,
		Example: `  wanfed keyring list
  wanfed keyring list --output json | jq '.servers[] | select(.problem)'`,
	}, new(operator), "keyring list", func(ctx context.Context, cc *grpc.ClientConn) (*pb.KeyringReport, error) {
		return pb.NewKeyringServiceClient(cc).List(ctx, &pb.ListKeyringRequest{ShowKeys: show})
	}, func(out output.Printer, report *pb.KeyringReport) error {
		view := keyring.NewView(report)
		return out.Print(view, func() error {
			if err := out.Table(serverKeyRows(view)); err != nil || len(view.Keys) == 0 {
				return err
			}
			fmt.Fprintln(out.W)
			return out.Table(keyRows(view, show))
		})
	})
	c.Flags().BoolVar(&show, "show-keys", false, "print the keys of the called server")
	return c
}

func serverKeyRows(view keyring.View) [][]string {
	rows := [][]string{{"Datacenter", "Node", "Member", "Version", "Primary", "Keys", "Problem"}}
	for _, s := range view.Servers {
		version, keys := "-", "-"
		if s.Answered {
			version, keys = fmt.Sprint(s.Version), fmt.Sprint(len(s.Keys))
		}
		rows = append(rows, []string{
			s.Datacenter, s.Node, s.Member, version, cmp.Or(s.Primary, "-"), keys, cmp.Or(s.Problem, "-"),
		})
	}
	return rows
}

func keyRows(view keyring.View, show bool) [][]string {
	answered := 0
	for _, s := range view.Servers {
		if s.Answered {
			answered++
		}
	}
	rows := [][]string{{"Key", "Installed On", "Primary On"}}
	if show {
		rows[0] = append(rows[0], "Secret")
	}
	for _, k := range view.Keys {
		row := []string{k.Fingerprint, fmt.Sprintf("%d/%d", k.Servers, answered),
			fmt.Sprintf("%d/%d", k.PrimaryOn, answered)}
		if show {
			row = append(row, cmp.Or(k.Key, "-"))
		}
		rows = append(rows, row)
	}
	return rows
}
