// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
)

func newKeyringGenerate() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "generate",
		Short: "Make a random gossip key",
		Long: `Make a random gossip key, 32 bytes in base64, and print it, or write it to a new file that only its owner can read. It
asks no server. Consul's servers take the same keys.`,
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
	c.Flags().StringVar(&file, "file", "", "write it to this new `file`, with mode 0600")
	return c
}

func saveKey(file string, k gossip.Key) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already, and nothing is ever overwritten; move it away or give another name", file)
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
	var where keyringCall
	var only bool
	c := &cobra.Command{
		Use:   "install KEY",
		Short: "Add a key to the ring of every server",
		Long: `Add a key to the ring of every server of the federation, so that they understand gossip which is encrypted with it. KEY is
what "wanfed keyring generate" prints; "-" reads it from stdin, where other users of the machine do not see it.

The primary's servers keep count of the changes: --dc is the primary's name, and --server a server's port, or the address
of any gateway from which the primary is reached. Ends with exit status 1 if a server has missed it. That one takes the
ring from another when it can be reached again; to see whether, run the command again.

With --only, the key goes to the one server that is called: --dc is its datacenter, and --node its name if --server is a
gateway. That is for a server that shares no key with the others any more: give it one of theirs, and it takes all.`,
		Example: `  wanfed keyring install - --dc dc1 --server 10.0.0.5:8300 <gossip.key
  wanfed keyring install - --only --dc dc3 --node srv2 --server 192.0.2.7:8443 <gossip.key`,
		Args:              oneKey(false),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := keyArg(cmd, args[0])
			if err != nil {
				return err
			}
			key, err := gossip.ParseKey(s)
			if err != nil {
				if _, noFile := os.Stat(args[0]); args[0] != "-" && noFile == nil {
					return usagef("KEY is the name of a file; to take the key that it has: %s - <FILE", cmd.CommandPath())
				}
				return usageError{err}
			}
			if only {
				return giveKey(cmd, where, key)
			}
			if where.node != "" {
				return usagef("--node is for --only: the ring of all servers is changed by the primary's leader")
			}
			return changeKeyring(cmd, where, pb.ChangeKeyringRequest_OP_INSTALL, key.Base64(), false)
		},
	}
	where.addFlags(c, "the primary `datacenter`")
	c.Flags().BoolVar(&only, "only", false, "give it to the called server alone, which shares no key with the others")
	c.Flags().StringVar(&where.node, "node", "", "with --only: `name` of the server")
	return c
}

func giveKey(cmd *cobra.Command, where keyringCall, key gossip.Key) error {
	return where.do(cmd, func(ctx context.Context, c pb.KeyringServiceClient) error {
		s, err := c.Give(ctx, &pb.GiveKeyRequest{Key: key.Base64()})
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s.%s has key %s now, and takes the ring of the others when it reaches one; see: wanfed keyring list\n",
				printable(s.Node), printable(s.Datacenter), key.Fingerprint())
		}
		return err
	})
}

func newKeyringUse() *cobra.Command {
	return newKeyringChange(pb.ChangeKeyringRequest_OP_USE, &cobra.Command{
		Use:   "use KEY",
		Short: "Make a key the primary: gossip is encrypted with it",
		Long: `Make a key of the ring the primary on every server, so that gossip is encrypted with it. KEY is the key or its
fingerprint; "-" reads it from stdin. It is refused as long as a server that is alive has not got the key.`,
		Example: `  wanfed keyring use 1f7c0e5b9a3d2468 --dc dc1 --server 10.0.0.5:8300`,
	}, "use it although living servers have not got it, which are cut off")
}

func newKeyringRemove() *cobra.Command {
	return newKeyringChange(pb.ChangeKeyringRequest_OP_REMOVE, &cobra.Command{
		Use:   "remove KEY",
		Short: "Remove a key from the ring of every server",
		Long: `Remove a key from the ring of every server. KEY is the key or its fingerprint; "-" reads it from stdin. The primary cannot
be removed. It is refused as long as a server, alive or not, may have no other key: one that has missed a change is
taught the others when it returns, and for that needs a key that they have.`,
		Example: `  wanfed keyring remove 1f7c0e5b9a3d2468 --dc dc1 --server 10.0.0.5:8300`,
	}, "remove it although servers may have no other, which are cut off")
}

func newKeyringChange(op pb.ChangeKeyringRequest_Op, c *cobra.Command, force string) *cobra.Command {
	var where keyringCall
	var forced bool
	c.Args = oneKey(true)
	c.ValidArgsFunction = cobra.NoFileCompletions
	c.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := keyArg(cmd, args[0])
		if err != nil {
			return err
		}
		return changeKeyring(cmd, where, op, key, forced)
	}
	where.addFlags(c, "the primary `datacenter`")
	c.Flags().BoolVar(&forced, "force", false, force)
	return c
}

func changeKeyring(cmd *cobra.Command, where keyringCall, op pb.ChangeKeyringRequest_Op, key string, force bool) error {
	return where.do(cmd, func(ctx context.Context, c pb.KeyringServiceClient) error {
		report, err := c.Change(ctx, &pb.ChangeKeyringRequest{Op: op, Key: key, Force: force})
		if err != nil {
			return err
		}
		if err := writeTable(cmd.OutOrStdout(), serverRows(report)); err != nil {
			return err
		}
		if report.Refused != "" {
			return errors.New(printable(report.Refused))
		}
		return judgeChange(cmd, op, report)
	})
}

// judgeChange says what came of a change: an error if a server has missed it.
func judgeChange(cmd *cobra.Command, op pb.ChangeKeyringRequest_Op, report *pb.KeyringReport) error {
	var missed []string
	for _, s := range report.Servers {
		if s.Error != "" || s.Version != report.Version || !slices.Equal(s.Fingerprints, report.Fingerprints) {
			missed = append(missed, s.Node+"."+s.Datacenter)
		}
	}
	done := map[pb.ChangeKeyringRequest_Op]string{
		pb.ChangeKeyringRequest_OP_INSTALL: "installed", pb.ChangeKeyringRequest_OP_USE: "in use", pb.ChangeKeyringRequest_OP_REMOVE: "removed",
	}[op]
	if !report.Changed {
		done = "was so already"
	}
	keys := fmt.Sprintf("%d keys", len(report.Fingerprints))
	if len(report.Fingerprints) == 1 {
		keys = "1 key"
	}
	all := len(report.Servers)
	fmt.Fprintf(cmd.OutOrStdout(), "\n%s: %d of %d servers have version %d of the ring, with %s, %s the primary\n",
		done, all-len(missed), all, report.Version, keys, printable(strings.Join(report.Fingerprints[:min(1, len(report.Fingerprints))], "")))
	if len(missed) > 0 {
		return fmt.Errorf("%d of %d servers missed it: %s; they take it from another when they can be reached, if they have a key of the ring",
			len(missed), all, printable(strings.Join(missed, ", ")))
	}
	return nil
}
