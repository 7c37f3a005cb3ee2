// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/wanfed/wanfed/api/lock"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/rpctext"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/tlsutil"
)

// Exit codes.
const (
	exitSuccess = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError is an error of the command line or the settings, with exit code 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// checkDuration returns a usageError if the value of a flag is below least, or
// above most. With 0 as most, there is no upper bound.
func checkDuration(flag string, value, least, most time.Duration) error {
	switch {
	case value >= least && (most == 0 || value <= most):
		return nil
	case most > 0:
		return usagef("--%s %v: must be %v to %v", flag, value, least, most)
	case least == 0:
		return usagef("--%s %v: must not be negative", flag, value)
	}
	return usagef("--%s %v: must be %v or more", flag, value, least)
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	root := newRoot()
	root.SetArgs(args)
	checkDefaultCommands(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitSuccess
	}
	if status, ok := err.(lock.ExitStatus); ok { // the command of wanfed lock has printed its reason
		return int(status)
	}
	fmt.Fprintln(os.Stderr, "wanfed:", rpctext.Plain(err.Error()))
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "wanfed",
		Short: "Join datacenters that reach each other only through gateways",
		Example: `  wanfed demo                                    # a federation on this machine
  wanfed init --dc dc1 --wan 198.51.100.1:8443   # the first datacenter
  wanfed status                                  # health of the federation
  wanfed diagnose                                # why a datacenter does not work`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usagef("a command is required")
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// With an unknown command, its flags are unknown as well.
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 && cmd.Args != nil {
			if err := cmd.Args(cmd, args); err != nil {
				return err
			}
		}
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			if name := similarFlag(cmd, unknown.GetSpecifiedName()); name != "" {
				return usagef("%w; did you mean --%s?", err, name)
			}
		}
		return usagef("%w; see: %s --help", flagError(err), cmd.CommandPath())
	})
	addStopOnEOF(root)
	addCommands(root, "Getting Started", unixOnly(newDemo()), newInit(), newToken(), newJoin(), unixOnly(newUp()))
	addCommands(root, "Data and Task", newKV(), newServices(), newNodes(), newResource(), newLock(), newTask())
	addCommands(root, "Operation", unixOnly(newServer()), unixOnly(newGateway()), unixOnly(newSync()), newEnvoy(),
		newStatus(), newInfo(), newMonitor(), newDiagnose(), newDebug(), newBenchmark(), newMembers(), newFederation(),
		newControllers(), newSnapshot(), newPolicy(), newOperator())
	addCommands(root, "Certificate and Key", newTLS(), newKeyring())
	addCommands(root, "Tool", newContext(), newValidate(), newVersion())
	root.SetHelpCommandGroupID("Tool")
	root.SetCompletionCommandGroupID("Tool")
	root.SetUsageFunc(wrapUsage)
	root.SetHelpFunc(wrapHelp)
	return root
}

// checkDefaultCommands adds the commands help and completion of cobra, and
// makes an unknown command or shell an error. The command completion writes to
// the output that root has now.
func checkDefaultCommands(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, func(_ *cobra.Command, args []string) error {
				cmd, rest, err := root.Find(args)
				if err != nil {
					return usageError{err}
				}
				if err := noArgs(cmd, rest); err != nil {
					return err
				}
				cmd.InitDefaultHelpFlag() // it is in the help
				return cmd.Help()
			}
		case "completion":
			c.Args, c.RunE = noArgs, subcommandRequired
			for _, shell := range c.Commands() {
				shell.Args = noArgs
			}
		}
	}
}

// addCommands adds commands to root, under "title Commands" in its help.
func addCommands(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title + " Commands:"})
	for _, c := range commands {
		c.GroupID = title
		root.AddCommand(c)
	}
}

// unixOnly makes a command that runs a process of wanfed fail on Windows, which
// lacks the signals and file locks of Unix. Subcommands are not affected.
func unixOnly(c *cobra.Command) *cobra.Command {
	if runtime.GOOS == "windows" {
		c.PreRunE = func(cmd *cobra.Command, _ []string) error { return errWindows(cmd) }
	}
	return c
}

// errWindows is the error of a command that does not run on Windows.
func errWindows(cmd *cobra.Command) error {
	return fmt.Errorf("%s needs Unix: run it on Linux or macOS", cmd.CommandPath())
}

// similarFlag is similarCommand for the flags of cmd.
func similarFlag(cmd *cobra.Command, name string) (similar string) {
	var flags cobra.Command // SuggestionsFor compares names of commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return similarCommand(&flags, name)
}

// similarCommand returns the subcommand of cmd whose name differs from name in at
// most two characters or begins with it, or "" if none does.
func similarCommand(cmd *cobra.Command, name string) string { return mostSimilar(cmd, name, 2) }

// mostSimilar is similarCommand for at most most characters, at least 1 and at
// most 2.
func mostSimilar(cmd *cobra.Command, name string, most int) string {
	for distance := 1; distance <= min(max(most, 1), 2); distance++ {
		cmd.SuggestionsMinimumDistance = distance
		if similar := cmd.SuggestionsFor(name); len(similar) > 0 {
			return similar[0]
		}
	}
	return ""
}

// didYouMean returns "; did you mean NAME?" if one of names is similar to name,
// and otherwise "".
func didYouMean(names []string, name string) string {
	if slices.Contains(names, name) {
		return ""
	}
	var commands cobra.Command // SuggestionsFor compares commands
	for _, n := range names {
		commands.AddCommand(&cobra.Command{Use: n, Run: func(*cobra.Command, []string) {}})
	}
	if similar := mostSimilar(&commands, name, len(name)/2); similar != "" {
		return "; did you mean " + similar + "?"
	}
	return ""
}

// newGroup returns a command with subcommands only. A call without a
// subcommand, or with an unknown one, is a usage error.
func newGroup(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArgs,
		RunE:  subcommandRequired,
	}
	c.AddCommand(subs...)
	return c
}

func subcommandRequired(cmd *cobra.Command, _ []string) error {
	return usagef("a subcommand is required; see: %s --help", cmd.CommandPath())
}

// flagError replaces the text of package strconv, in the error of a flag, by a
// text for users.
func flagError(err error) error {
	numErr, ok := errors.AsType[*strconv.NumError](err)
	if !ok {
		return err
	}
	remedy := "must be a whole number"
	switch {
	case numErr.Func == "ParseBool":
		remedy = "must be true or false"
	case errors.Is(numErr, strconv.ErrRange):
		remedy = "number too large"
	}
	return errors.New(strings.TrimSuffix(err.Error(), numErr.Error()) + remedy)
}

var noArgs = exactArgs()

// exactArgs requires one non-empty argument for each name.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) || args[i] == "" {
				return usagef("%s is required: %s; see: %s --help", name, cmd.UseLine(), cmd.CommandPath())
			}
		}
		if len(args) == len(names) {
			return nil
		}
		problem, extra := "unexpected argument", args[len(names)]
		if cmd.HasSubCommands() {
			problem = "unknown command"
			if similar := similarCommand(cmd, extra); similar != "" {
				return usagef("unknown command %q; did you mean: %s %s", extra, cmd.CommandPath(), similar)
			}
		}
		return usagef("%s %q; see: %s --help", problem, extra, cmd.CommandPath())
	}
}

// optionalArg permits one argument. name is its placeholder in the usage line.
func optionalArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return exactArgs(name)(cmd, args)
	}
}

// labelArg requires one argument that is a DNS label. The parameter name is the
// placeholder of the argument in the usage line, such as DC. An error about an
// invalid label begins with kind, such as datacenter.
func labelArg(name, kind string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := exactArgs(name)(cmd, args); err != nil {
			return err
		}
		if err := tlsutil.CheckLabel(args[0]); err != nil {
			return usagef("%s: %w", kind, err)
		}
		return nil
	}
}

// files requires at least one argument.
func files(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("FILE is required: %s; see: %s --help", cmd.UseLine(), cmd.CommandPath())
	}
	return nil
}

// addSettings adds the flags of settings to cmd. It returns a function that reads
// and checks the settings. The errors of that function are usage errors.
func addSettings[S interface{ Check() error }](cmd *cobra.Command, defaults func() S) (load func() (S, error)) {
	s := defaults()
	settings.AddFlags(cmd.Flags(), &s)
	completeSettings(cmd)
	return func() (S, error) {
		s := defaults()
		err := settings.Load(cmd.Flags(), cmd.ErrOrStderr(), &s)
		if err == nil {
			err = s.Check()
		}
		if err != nil {
			err = usageError{err}
		}
		return s, err
	}
}

// orphanTimeout bounds the shutdown of a process whose parent has ended. After
// orphanTimeout the process exits, even if its shutdown is not complete.
const orphanTimeout = 15 * time.Second

// addStopOnEOF adds the flag that stops a process when its parent process ends.
func addStopOnEOF(root *cobra.Command) {
	on := root.PersistentFlags().Bool(subprocess.StopOnEOF, false,
		"stop when stdin ends, because the parent process has ended")
	_ = root.PersistentFlags().MarkHidden(subprocess.StopOnEOF)
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		if !*on {
			return
		}
		ctx := subprocess.UntilEOF(cmd.Context(), cmd.InOrStdin())
		context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), subprocess.ErrParentGone) {
				time.AfterFunc(orphanTimeout, func() { os.Exit(exitFailure) })
			}
		})
		cmd.SetContext(ctx)
	}
}

func newVersion() *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  wanfed version
  wanfed version --output json`,
		Args: noArgs,
	}
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		info := version.Get()
		out := printer()
		return out.Print(info, func() error {
			_, err := fmt.Fprintln(out.W, "wanfed", info)
			return err
		})
	}
	return c
}
