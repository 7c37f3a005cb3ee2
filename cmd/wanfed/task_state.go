// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/state"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
)

func newTaskState() *cobra.Command {
	c := newGroup("state", "Manage the Terraform states of tasks",
		newTaskStateList(), newTaskStateVersions(), newTaskStatePull(), newTaskStateRestore(), newTaskStateImport(), newTaskStateUnlock(),
		newTaskStateKey())
	c.Long = `Manage the Terraform states of tasks. The states are stored at the servers, encrypted
with the keys of the daemons' key file (state_key_file, or .state-keys in the
working directory). Commands that read or write a state need this file.`
	c.Example = `  wanfed task state list
  wanfed task state versions firewall
  wanfed task state pull firewall --state-key-file sync.keys > firewall.tfstate
  wanfed task state restore firewall 3 --state-key-file sync.keys`
	return c
}

// maxStateFile bounds a file of "task state import", in bytes.
const maxStateFile = 64 << 20

// stateCommand is a command about the state of a task.
type stateCommand struct {
	operator
	keyFile string
}

// addFlags makes c a command that calls run with the states of tasks and the
// arguments. If needsKey is true, --state-key-file is required.
func (s *stateCommand) addFlags(
	c *cobra.Command, needsKey bool, run func(ctx context.Context, cmd *cobra.Command, st *state.Store, args []string) error,
) *cobra.Command {
	s.operator.addFlags(c)
	if needsKey {
		c.Flags().StringVar(&s.keyFile, "state-key-file", "", "`file` with the keys of the states (required)")
	}
	c.ValidArgsFunction = completeArgs(completeResources(taskType))
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if err := task.CheckName(args[0]); err != nil {
			return usageError{err}
		}
		if needsKey && s.keyFile == "" {
			return usagef("--state-key-file is required")
		}
		_, err := callServer(cmd, &s.operator, cmd.CommandPath(), "",
			func(ctx context.Context, cc *grpc.ClientConn) (struct{}, error) {
				st, err := state.NewStore(state.StoreConfig{Client: pb.NewResourceServiceClient(cc), KeyFile: s.keyFile})
				if err != nil {
					return struct{}{}, err
				}
				return struct{}{}, run(ctx, cmd, st, args)
			})
		return err
	}
	return c
}

func newTaskStateVersions() *cobra.Command {
	var s stateCommand
	var printer func() output.Printer
	c := s.addFlags(&cobra.Command{
		Use:     "versions TASK",
		Short:   "List the versions of a state",
		Long:    `List the newest 20 versions of the state of a task, newest first, and its lock.`,
		Example: `  wanfed task state versions firewall`,
		Args:    exactArgs("TASK"),
	}, false, func(ctx context.Context, cmd *cobra.Command, st *state.Store, args []string) error {
		data, err := st.Read(ctx, args[0])
		if err != nil {
			return err
		}
		if l := data.Lock; l != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "locked by %s since %s for %s; to unlock: wanfed task state unlock %s %s\n", l.Who,
				output.Timestamp(timeOf(l.CreatedAt)), l.Operation, args[0], l.Id)
		}
		versions := data.Versions
		if versions == nil {
			versions = []*pb.TaskStateVersion{}
		}
		return printer().Print(versions, func() error {
			rows := [][]string{{"Version", "Serial", "Size", "Stored", "Key", "Run"}}
			for _, v := range versions {
				rows = append(rows, []string{strconv.FormatUint(v.Number, 10), strconv.FormatUint(v.Serial, 10),
					output.Size(int64(v.Size)), output.Timestamp(timeOf(v.StoredAt)), v.Key, v.Run})
			}
			return printer().Table(rows)
		})
	})
	printer = output.AddFlag(c)
	return c
}

func newTaskStatePull() *cobra.Command {
	var s stateCommand
	var version uint64
	c := s.addFlags(&cobra.Command{
		Use:   "pull TASK [FILE]",
		Short: "Print a state",
		Long: `Print the state of a task as Terraform's JSON, decrypted: the newest version, or that
of --version. A state may contain secrets.

With FILE, print the state in a file that a daemon has kept because it could not
store it, for example because another daemon has run the task since.`,
		Example: `  wanfed task state pull firewall --state-key-file sync.keys > firewall.tfstate
  wanfed task state pull firewall firewall.01K3V6.kept --state-key-file sync.keys`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usagef("TASK is required, and at most one FILE")
			}
			return nil
		},
	}, true, func(ctx context.Context, cmd *cobra.Command, st *state.Store, args []string) (err error) {
		var data []byte
		if len(args) == 2 {
			data, err = readStateFile(args[0], args[1], s.keyFile)
		} else {
			data, _, err = st.Get(ctx, args[0], version)
		}
		if err == nil {
			_, err = cmd.OutOrStdout().Write(data)
		}
		return err
	})
	c.Flags().Uint64Var(&version, "version", 0, "`number` of the version (0: the newest)")
	return c
}

func newTaskStateRestore() *cobra.Command {
	var s stateCommand
	return s.addFlags(&cobra.Command{
		Use:   "restore TASK VERSION",
		Short: "Make an older version of a state the newest",
		Long: `Store the content of an older version of a state as a new version, with the next
serial. Terraform then manages what that version contains.`,
		Example: `  wanfed task state restore firewall 3 --state-key-file sync.keys`,
		Args:    exactArgs("TASK", "VERSION"),
	}, true, func(ctx context.Context, cmd *cobra.Command, st *state.Store, args []string) error {
		number, err := strconv.ParseUint(args[1], 10, 64)
		if err != nil || number == 0 {
			return usagef("VERSION %q: must be a number of wanfed task state versions %s", args[1], args[0])
		}
		v, err := st.Restore(ctx, state.Claim{Task: args[0]}, number)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "state of task %s: version %d is stored as version %d\n", args[0], number, v.Number)
		}
		return err
	})
}

func newTaskStateImport() *cobra.Command {
	var s stateCommand
	var force bool
	var agent, path string
	c := s.addFlags(&cobra.Command{
		Use:   "import TASK [FILE]",
		Short: "Store a state from a file, or from Consul",
		Long: `Store a state from a file: Terraform's JSON, such as errored.tfstate, or a file that
a daemon has kept because it could not store it. A state of another lineage, and
one with an older serial, are refused without --force.

With --consul, and without FILE, the state is that of a task of
Consul-Terraform-Sync in Consul's key-value store. Stop Consul-Terraform-Sync
first. The environment variables CONSUL_HTTP_TOKEN, CONSUL_HTTP_TOKEN_FILE,
CONSUL_CACERT, CONSUL_CAPATH, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY and
CONSUL_TLS_SERVER_NAME apply. The state in Consul is not changed.`,
		Example: `  wanfed task state import firewall errored.tfstate --state-key-file sync.keys
  wanfed task state import firewall --consul http://127.0.0.1:8500 --state-key-file sync.keys`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case agent == "" && len(args) != 2:
				return usagef("TASK and FILE are required, or TASK and --consul")
			case agent != "" && len(args) != 1:
				return usagef("TASK is required, and with --consul no FILE is permitted")
			}
			return nil
		},
	}, true, func(ctx context.Context, cmd *cobra.Command, st *state.Store, args []string) error {
		var data []byte
		var err error
		from := "the state in Consul"
		if agent == "" {
			from = args[1]
			data, err = readStateFile(args[0], from, s.keyFile)
		} else {
			data, err = readConsulState(ctx, agent, path, args[0])
		}
		if err != nil {
			return err
		}
		v, err := st.Import(ctx, state.Claim{Task: args[0]}, data, state.ImportOptions{Force: force})
		if errors.Is(err, state.ErrObsolete) {
			err = fmt.Errorf("%w: compare it with the output of wanfed task state pull %s, "+
				"and add --force if the file is right", err, args[0])
		}
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "state of task %s: %s is stored as version %d\n", args[0], from, v.Number)
		}
		return err
	})
	c.ValidArgsFunction = nil
	c.Flags().BoolVar(&force, "force", false, "store also another lineage or an older serial")
	c.Flags().StringVar(&agent, "consul", "", "`URL` of an agent of Consul with the state, or env for CONSUL_HTTP_ADDR")
	c.Flags().StringVar(&path, "consul-path", state.ConsulPath, "`path` of the states in Consul, as in the block backend of the task")
	return c
}

// readConsulState reads the state of a task of Consul-Terraform-Sync.
func readConsulState(ctx context.Context, addr, path, name string) ([]byte, error) {
	cfg := consul.FromEnv()
	if addr != "env" {
		cfg.Addr = addr
	}
	c, err := cfg.Client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	data, err := state.ReadConsul(ctx, c, path, name)
	return data, consul.Remedies{
		Token:   "set CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE to a token with key_prefix read on " + path,
		Connect: "check --consul, CONSUL_CACERT and CONSUL_CLIENT_CERT",
	}.Explain(err)
}

// readStateFile reads a state of Terraform, or a file that a daemon has kept.
func readStateFile(name, path, keyFile string) ([]byte, error) {
	data, err := settings.ReadFile(path, maxStateFile)
	if err != nil || strings.HasPrefix(strings.TrimSpace(string(data[:min(len(data), 100)])), "{") {
		return data, err
	}
	of, data, err := state.OpenJournal(path, keyFile)
	if err == nil && of != name {
		err = fmt.Errorf("%s has a state of task %s, not of %s", path, of, name)
	}
	return data, err
}

func newTaskStateUnlock() *cobra.Command {
	var s stateCommand
	return s.addFlags(&cobra.Command{
		Use:   "unlock TASK ID",
		Short: "Release the lock of a state",
		Long: `Release the lock of a state, if the command that holds it has died. The daemon
releases the locks of its own runs. The id is in the error of a refused command, and
in the output of "wanfed task state versions".`,
		Example: `  wanfed task state unlock firewall 6f1e2c9a-4ad3-5b39-9f1f-0c8d7a1b2c3d`,
		Args:    exactArgs("TASK", "ID"),
	}, false, func(ctx context.Context, cmd *cobra.Command, st *state.Store, args []string) error {
		err := st.Unlock(ctx, state.Claim{Task: args[0]}, args[1])
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "state of task %s is unlocked\n", args[0])
		}
		return err
	})
}

func newTaskStateKey() *cobra.Command {
	var use bool
	c := &cobra.Command{
		Use:   "key FILE",
		Short: "Create a key for states",
		Long: `Add a new key to a key file, as the last one. The first key encrypts, and all keys
decrypt. The file is created with mode 0600 if it does not exist. All daemons of a
group need the same file.

To replace a key, add a new one and copy the file to all daemons. Then move the new
key to the first place with --use, and copy the file again.`,
		Example: `  wanfed task state key sync.keys
  wanfed task state key sync.keys --use`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, statErr := os.Stat(args[0])
			id, verb := "", "added to"
			var err error
			if use {
				id, err = state.UseNewestKey(args[0])
				verb = "is now the first key of"
			} else if id, err = state.GenerateKey(args[0]); statErr != nil {
				verb = "saved in"
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "key %s %s %s\n", id, verb, args[0])
			return err
		},
	}
	c.Flags().BoolVar(&use, "use", false, "make the newest key of the file the first one, which encrypts")
	return c
}
