// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
)

const (
	// lockSuffix and lockFlags are those of Consul, so that a "consul lock" of
	// the same key and "wanfed lock" exclude each other.
	lockSuffix = "/.lock"
	lockFlags  = 0x2ddccbc058a50c18
	// lockRetry is the pause between attempts during a lock delay, and after an
	// error.
	lockRetry = time.Second
	// releaseTimeout bounds the release of the lock at the end.
	releaseTimeout = 5 * time.Second
)

var errLockLost = errors.New("lock lost")

// exitStatus is the exit status of a command that wanfed has run.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// lockCommand is a call of wanfed lock.
type lockCommand struct {
	cl                             client
	key                            string
	ttl, delay, timeout, terminate time.Duration
	name                           string
	command                        []string
	session                        string
}

func newLock() *cobra.Command {
	l := &lockCommand{}
	c := &cobra.Command{
		Use:   "lock KEY -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Long: `Run a command while holding a lock, on one of several machines.

The command waits for the lock of KEY, runs COMMAND, and releases the lock when
COMMAND has ended. Its exit status is that of COMMAND. If the lock is lost,
COMMAND gets SIGTERM, and SIGKILL after --terminate-timeout, and the exit status
is not 0. SIGTERM and SIGINT for wanfed also end COMMAND in this way.

The lock is held by a session, which is renewed while COMMAND runs. When this
machine fails, another one gets the lock after one and a half times --ttl, and
the delay of --lock-delay.

COMMAND has the environment variables CONSUL_LOCK_HELD=true and
WANFED_LOCK_TOKEN. The token is a number that grows with each holder of any lock.
A system that receives requests of COMMAND can reject those with a token below
the highest one that it has received. A lock alone cannot prevent that COMMAND
continues for a short time after its machine was suspended.

The key is KEY/.lock. "consul lock" uses the same key.`,
		Example: `  wanfed lock backup -- /usr/local/bin/backup --all
  wanfed lock --timeout 10s deploy -- sh -c 'echo token $WANFED_LOCK_TOKEN'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at != 1 || len(args) < 2 || args[0] == "" {
				return usagef("KEY -- COMMAND is required; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			l.key, l.command = args[0]+lockSuffix, args[1:]
			if l.ttl < 10*time.Second || l.ttl > 24*time.Hour {
				return usagef("--ttl %v: must be 10s to 24h", l.ttl)
			}
			if err := requireHTTPS(cmd); err != nil {
				return err
			}
			cl, err := newClient(cmd, 0)
			if err != nil {
				return err
			}
			defer cl.Close()
			l.cl = cl
			return explainHTTP(l.run(cmd))
		},
	}
	addClientFlags(c)
	c.Flags().DurationVar(&l.ttl, "ttl", 15*time.Second, "`time` to live of the session, 10s to 24h")
	c.Flags().DurationVar(&l.delay, "lock-delay", 15*time.Second,
		"`time` after a lost lock during which it cannot be locked, at most 1m")
	c.Flags().DurationVar(&l.timeout, "timeout", 0, "`time` to wait for the lock (0: no limit)")
	c.Flags().DurationVar(&l.terminate, "terminate-timeout", 5*time.Second, "`time` from SIGTERM to SIGKILL")
	c.Flags().StringVar(&l.name, "name", "", "`name` of the session (default: \"wanfed lock\" with the key)")
	return c
}

func (l *lockCommand) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	if l.name == "" {
		l.name = "wanfed lock " + l.key
	}
	sent := time.Now()
	l.session, err = l.cl.CreateSession(ctx, api.SessionRequest{Name: l.name, TTL: l.ttl, LockDelay: l.delay}, l.cl.opts)
	if err != nil {
		return err
	}
	held, lose := context.WithCancelCause(ctx)
	var renewals sync.WaitGroup
	defer renewals.Wait()
	defer lose(context.Canceled)
	renewals.Go(func() { lose(l.renew(held, sent)) })
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if rerr := l.release(rctx); rerr != nil && err == nil {
			err = fmt.Errorf("cannot release the lock, which ends %v later: %w", l.ttl+l.ttl/2, rerr)
		}
	}()
	token, err := l.acquire(held)
	if err == nil {
		renewals.Go(func() { lose(l.watch(held)) })
		err = l.execute(cmd, held, token)
	}
	if errors.Is(context.Cause(held), errLockLost) {
		err = fmt.Errorf("%s: %w", l.key, context.Cause(held))
	}
	return err
}

// acquire waits for the lock, and returns its token.
func (l *lockCommand) acquire(ctx context.Context) (token uint64, err error) {
	wait := ctx
	if l.timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, l.timeout)
		defer cancel()
	}
	for {
		locked, err := l.cl.LockKey(wait, l.lockedKey(), l.cl.opts)
		if err == nil {
			var k *api.Key
			var meta api.QueryMeta
			k, meta, err = l.cl.ReadKey(wait, l.key, l.cl.opts)
			switch {
			case err == nil && locked && k != nil && k.Session == l.session:
				return k.ModifyIndex, nil
			case err == nil && k != nil && k.Session != "" && k.Session != l.session:
				o := l.cl.opts
				o.Index, o.Wait = meta.Index, time.Minute
				_, _, err = l.cl.ReadKey(wait, l.key, o)
			default:
				backoff.Sleep(wait, lockRetry, nil) // a lock delay
			}
		}
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case wait.Err() != nil:
			return 0, fmt.Errorf("lock %s is held: not acquired within --timeout %v", l.key, l.timeout)
		case isTemporary(err):
			backoff.Sleep(wait, lockRetry, nil)
		case err != nil:
			return 0, err
		}
	}
}

func (l *lockCommand) lockedKey() api.Key {
	return api.Key{Key: l.key, Value: []byte(l.name), Flags: lockFlags, Session: l.session}
}

// isTemporary reports whether a request may succeed later: the server is
// unreachable, or its datacenter has no leader.
func isTemporary(err error) bool {
	if _, ok := errors.AsType[*api.UnreachableError](err); ok {
		return true
	}
	s, ok := errors.AsType[*api.StatusError](err)
	return ok && s.Code >= 500 && !strings.HasPrefix(s.Message, "invalid session")
}

// renew renews the session until ctx ends. It returns errLockLost when the
// session has ended, or when its TTL has passed since the last renewal was sent.
func (l *lockCommand) renew(ctx context.Context, sent time.Time) error {
	for {
		backoff.Sleep(ctx, min(l.ttl/3, max(0, l.ttl-time.Since(sent))), nil)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for now := time.Now(); ; backoff.Sleep(ctx, lockRetry, nil) {
			rctx, cancel := context.WithDeadline(ctx, sent.Add(l.ttl))
			err := l.cl.RenewSession(rctx, l.session, l.cl.opts)
			cancel()
			if err == nil {
				sent = now
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, api.ErrNotFound) {
				return fmt.Errorf("%w: its session has ended", errLockLost)
			}
			if now = time.Now(); now.Sub(sent) >= l.ttl {
				return fmt.Errorf("%w: its session could not be renewed: %w", errLockLost, err)
			}
		}
	}
}

// watch returns errLockLost when another session, or none, has locked the key.
func (l *lockCommand) watch(ctx context.Context) error {
	for o := l.cl.opts; ; {
		k, meta, err := l.cl.ReadKey(ctx, l.key, o)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // the renewals detect a longer failure
			backoff.Sleep(ctx, lockRetry, nil)
			o.Index = 0
		case k == nil || k.Session != l.session:
			return fmt.Errorf("%w: its key was released or deleted", errLockLost)
		default:
			o.Index, o.Wait = meta.Index, time.Minute
		}
	}
}

// release unlocks the key, deletes it unless another session has locked it, and
// ends the session.
func (l *lockCommand) release(ctx context.Context) error {
	k := l.lockedKey()
	k.Value = nil
	unlocked, err := l.cl.UnlockKey(ctx, k, l.cl.opts)
	if err == nil && unlocked {
		if k, _, rerr := l.cl.ReadKey(ctx, l.key, l.cl.opts); rerr == nil && k != nil && k.Session == "" {
			_, err = l.cl.DeleteKey(ctx, l.key, k.ModifyIndex, l.cl.opts)
		}
	}
	return errors.Join(err, l.cl.DestroySession(ctx, l.session, l.cl.opts))
}

// execute runs the command until it ends. When ctx ends, it terminates the
// command.
func (l *lockCommand) execute(cmd *cobra.Command, ctx context.Context, token uint64) error {
	child := exec.CommandContext(ctx, l.command[0], l.command[1:]...)
	child.Stdin, child.Stdout, child.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.Env = append(os.Environ(), "CONSUL_LOCK_HELD=true", "WANFED_LOCK_TOKEN="+strconv.FormatUint(token, 10))
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = max(l.terminate, time.Nanosecond)
	err := child.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := exit.ExitCode(); status >= 0 {
			return exitStatus(status)
		}
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return exitStatus(128 + int(w.Signal())) // as a shell
		}
	}
	if err != nil && child.ProcessState == nil {
		return fmt.Errorf("run %s: %w", l.command[0], err)
	}
	if child.ProcessState.Success() {
		return nil // Run reports the end of ctx, but the command has succeeded
	}
	return err
}
