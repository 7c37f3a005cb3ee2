// SPDX-License-Identifier: MPL-2.0

package lock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
)

const (
	// suffix and flags are those of Consul, so that a "consul lock" of
	// the same key and "wanfed lock" exclude each other.
	suffix = "/.lock"
	flags  = 0x2ddccbc058a50c18
	// retry is the pause between attempts during a lock delay, and after an
	// error.
	retry = time.Second
	// releaseTimeout bounds the release of the lock at the end.
	releaseTimeout = 5 * time.Second
)

var errLost = errors.New("lock lost")

// ExitStatus is the error of a program that ended with this exit status, which
// is not 0. A program that a signal ended has 128 plus the number of the signal,
// as in a shell.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Command is a program that runs while a lock is held.
type Command struct {
	Client  *api.Client
	Options api.QueryOptions // of all requests
	// Key is the name of the lock. The key in the store is Key with the suffix
	// "/.lock".
	Key string
	// Name is the name of the session. Default: "wanfed lock" with the key.
	Name string
	// TTL is the time to live of the session, 10 s to 24 h. Delay is the time
	// after a lost lock during which it cannot be locked, at most a minute.
	TTL, Delay time.Duration
	// Timeout limits the wait for the lock. 0: no limit.
	Timeout time.Duration
	// Terminate is the time from SIGTERM to SIGKILL when ctx ends or the lock is
	// lost.
	Terminate time.Duration

	Args           []string // the program and its arguments
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// holder is a call of Run.
type holder struct {
	Command
	session string
}

// Run waits for the lock, runs the program, and releases the lock. The error is
// an ExitStatus if the program has one. When ctx ends or the lock is lost, Run
// terminates the program.
func (c Command) Run(ctx context.Context) (err error) {
	c.Key += suffix
	l := &holder{Command: c}
	if l.Name == "" {
		l.Name = "wanfed lock " + l.Key
	}
	sent := time.Now()
	l.session, err = l.Client.CreateSession(ctx, api.SessionRequest{Name: l.Name, TTL: l.TTL, LockDelay: l.Delay}, l.Options)
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
			err = fmt.Errorf("cannot release the lock, which ends %v later: %w", l.TTL+l.TTL/2, rerr)
		}
	}()
	token, err := l.acquire(held)
	if err == nil {
		renewals.Go(func() { lose(l.watch(held)) })
		err = l.execute(held, token)
	}
	if errors.Is(context.Cause(held), errLost) {
		err = fmt.Errorf("%s: %w", l.Key, context.Cause(held))
	}
	return err
}

// acquire waits for the lock, and returns its token.
func (l *holder) acquire(ctx context.Context) (token uint64, err error) {
	wait := ctx
	if l.Timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, l.Timeout)
		defer cancel()
	}
	for {
		locked, err := l.Client.LockKey(wait, l.lockedKey(), l.Options)
		if err == nil {
			var k *api.Key
			var meta api.QueryMeta
			k, meta, err = l.Client.ReadKey(wait, l.Key, l.Options)
			switch {
			case err == nil && locked && k != nil && k.Session == l.session:
				return k.ModifyIndex, nil
			case err == nil && k != nil && k.Session != "" && k.Session != l.session:
				o := l.Options
				o.Index, o.Wait = meta.Index, time.Minute
				_, _, err = l.Client.ReadKey(wait, l.Key, o)
			default:
				backoff.Sleep(wait, retry, nil) // a lock delay
			}
		}
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case wait.Err() != nil:
			return 0, fmt.Errorf("lock %s is held: not acquired within --timeout %v", l.Key, l.Timeout)
		case isTemporary(err):
			backoff.Sleep(wait, retry, nil)
		case err != nil:
			return 0, err
		}
	}
}

func (l *holder) lockedKey() api.Key {
	return api.Key{Key: l.Key, Value: []byte(l.Name), Flags: flags, Session: l.session}
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

// renew renews the session until ctx ends. It returns errLost when the
// session has ended, or when its TTL has passed since the last renewal was sent.
func (l *holder) renew(ctx context.Context, sent time.Time) error {
	for {
		backoff.Sleep(ctx, min(l.TTL/3, max(0, l.TTL-time.Since(sent))), nil)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for now := time.Now(); ; backoff.Sleep(ctx, retry, nil) {
			rctx, cancel := context.WithDeadline(ctx, sent.Add(l.TTL))
			err := l.Client.RenewSession(rctx, l.session, l.Options)
			cancel()
			if err == nil {
				sent = now
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if errors.Is(err, api.ErrNoSession) {
				return fmt.Errorf("%w: its session has ended", errLost)
			}
			if now = time.Now(); now.Sub(sent) >= l.TTL {
				return fmt.Errorf("%w: its session could not be renewed: %w", errLost, err)
			}
		}
	}
}

// watch returns errLost when another session, or none, has locked the key.
func (l *holder) watch(ctx context.Context) error {
	for o := l.Options; ; {
		k, meta, err := l.Client.ReadKey(ctx, l.Key, o)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // the renewals detect a longer failure
			backoff.Sleep(ctx, retry, nil)
			o.Index = 0
		case k == nil || k.Session != l.session:
			return fmt.Errorf("%w: its key was released or deleted", errLost)
		default:
			o.Index, o.Wait = meta.Index, time.Minute
		}
	}
}

// release unlocks the key, deletes it unless another session has locked it, and
// ends the session.
func (l *holder) release(ctx context.Context) error {
	k := l.lockedKey()
	k.Value = nil
	unlocked, err := l.Client.UnlockKey(ctx, k, l.Options)
	if err == nil && unlocked {
		if k, _, rerr := l.Client.ReadKey(ctx, l.Key, l.Options); rerr == nil && k != nil && k.Session == "" {
			_, err = l.Client.DeleteKey(ctx, l.Key, &k.ModifyIndex, l.Options)
		}
	}
	return errors.Join(err, l.Client.DestroySession(ctx, l.session, l.Options))
}

// execute runs the command until it ends. When ctx ends, it terminates the
// command.
func (l *holder) execute(ctx context.Context, token uint64) error {
	child := exec.CommandContext(ctx, l.Args[0], l.Args[1:]...)
	child.Stdin, child.Stdout, child.Stderr = l.Stdin, l.Stdout, l.Stderr
	child.Env = append(os.Environ(), "CONSUL_LOCK_HELD=true", "WANFED_LOCK_TOKEN="+strconv.FormatUint(token, 10))
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = max(l.Terminate, time.Nanosecond)
	err := child.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := exit.ExitCode(); status >= 0 {
			return ExitStatus(status)
		}
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return ExitStatus(128 + int(w.Signal())) // as a shell
		}
	}
	if err != nil && child.ProcessState == nil {
		return fmt.Errorf("run %s: %w", l.Args[0], err)
	}
	if child.ProcessState.Success() {
		return nil // Run reports the end of ctx, but the command has succeeded
	}
	return err
}
