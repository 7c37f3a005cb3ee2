// SPDX-License-Identifier: MPL-2.0

package state

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
)

const (
	// holdTime is the longest time for which a state waits for a server before
	// Terraform gets an error.
	holdTime = time.Minute
	// journalAfter is the time after which such a state is written to a file.
	journalAfter = 2 * time.Second
	// interruptedTime is the time that a read of the state may still take when its
	// run is interrupted. Terraform reads the state before it stores the first one.
	// If that fails, it writes the state to a file. While it waits, it is killed.
	interruptedTime = time.Second
	// closeTimeout bounds the release of the lock of a run that has ended, and
	// the end of the connections of a Backend.
	closeTimeout = 10 * time.Second
	// headerTimeout and bodyTimeout bound the time for reading a request.
	headerTimeout = 10 * time.Second
	bodyTimeout   = 5 * time.Minute
)

// BackendConfig configures a Backend. All fields without a default are required.
type BackendConfig struct {
	Store *Store
	// Listener accepts the connections of Terraform, on the loopback. Run closes
	// it.
	Listener net.Listener
	// Dir is the directory for states that cannot be stored at the moment. The
	// Backend creates it with mode 0700. Only one process may use it.
	Dir string
	// Logger gets a line for each state that is not stored. Default: no log.
	Logger *slog.Logger
}

// Backend is Terraform's backend "http" for the states of tasks. Each run has its
// own password, and only the URL of its task.
type Backend struct {
	cfg  BackendConfig
	log  *slog.Logger
	host string        // host:port of the listener
	wake chan struct{} // size 1: there is a pending state

	mu      sync.Mutex
	entries map[string]*entry // by task
}

// entry is a task that has had a run.
type entry struct {
	// busy has size 1 and is full while a request or deliver stores a state.
	busy chan struct{}
	// session is the present run, guarded by Backend.mu. Nil: none.
	session *session
}

func (e *entry) acquire(ctx context.Context) error {
	select {
	case e.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *entry) release() { <-e.busy }

// session is one run with access to the state of its task.
type session struct {
	interrupted <-chan struct{} // closed when the run is interrupted
	claim       Claim
	run         string
	password    string
	requests    sync.WaitGroup // Add is called with Backend.mu held
	refused     error          // of the first request that failed; guarded by Backend.mu
}

// NewBackend returns a Backend. Run serves its requests.
func NewBackend(cfg BackendConfig) (*Backend, error) {
	if cfg.Store == nil || cfg.Listener == nil || cfg.Dir == "" {
		return nil, errors.New("state: Store, Listener and Dir of BackendConfig are required")
	}
	addr, ok := cfg.Listener.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsLoopback() {
		return nil, fmt.Errorf("state: the backend listens on %v: must be a TCP port of the loopback", cfg.Listener.Addr())
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Backend{
		cfg: cfg, log: cfg.Logger, host: addr.String(), wake: make(chan struct{}, 1), entries: make(map[string]*entry),
	}, nil
}

// Run serves requests until ctx ends, and stores pending states as soon as a
// server responds. It returns when all requests have ended. A state that is
// not stored then is in a file.
func (b *Backend) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	srv := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.serve(ctx, w, r) }),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(b.log.Handler(), slog.LevelDebug),
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { b.deliverAll(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if srv.Shutdown(sctx) != nil {
			_ = srv.Close()
		}
	})
	if err := srv.Serve(b.cfg.Listener); ctx.Err() == nil {
		return fmt.Errorf("serve Terraform's backend at %s: %w", b.host, err)
	}
	return nil
}

// deliverAll stores pending states whenever a request has left one.
func (b *Backend) deliverAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		}
		for pause := (backoff.Backoff{Min: minPause, Max: maxPause}); ctx.Err() == nil; {
			err := b.Replay(ctx)
			if err != nil {
				b.log.Error("state not stored", "err", err)
			}
			if !isPending(err) {
				break
			}
			backoff.Sleep(ctx, pause.Next(), nil)
		}
	}
}

// entry returns the entry of a task.
func (b *Backend) entry(name string) *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[name]
	if e == nil {
		e = &entry{busy: make(chan struct{}, 1)}
		b.entries[name] = e
	}
	return e
}

// Open gives a run access to the state of the task of c, until end is called or
// the next run of the task is opened. env has the environment variables of
// Terraform, which include a password. An empty run is an operator's command.
// The end of ctx interrupts the run: while no server responds, requests for the
// state then fail 1 s later. States that Terraform sends are still stored.
//
// The caller calls end when all processes of the run have ended. end waits for
// the requests that they have sent: at most about a minute, while no server
// responds. It releases the lock of the run. The lock of an operator's command
// stays. end returns the error of the first request that failed: Terraform does
// not print it.
func (b *Backend) Open(ctx context.Context, c Claim, run string) (env map[string]string, end func() error) {
	s := &session{interrupted: ctx.Done(), claim: c, run: run, password: rand.Text()}
	e := b.entry(c.Task)
	b.mu.Lock()
	e.session = s
	b.mu.Unlock()
	url := "http://" + b.host + "/" + c.Task
	return map[string]string{
			"TF_HTTP_ADDRESS": url, "TF_HTTP_LOCK_ADDRESS": url, "TF_HTTP_UNLOCK_ADDRESS": url,
			"TF_HTTP_USERNAME": "wanfed", "TF_HTTP_PASSWORD": s.password,
			"TF_HTTP_RETRY_MAX": "0", // the Backend retries
		}, sync.OnceValue(func() error {
			b.end(e, s)
			b.mu.Lock()
			defer b.mu.Unlock()
			return s.refused
		})
}

func (b *Backend) end(e *entry, s *session) {
	b.mu.Lock()
	if e.session == s {
		e.session = nil
	}
	b.mu.Unlock()
	s.requests.Wait()
	if s.run == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := b.cfg.Store.unlockRun(ctx, s.claim, s.run); err != nil && !errors.Is(err, ErrReplaced) {
		b.log.Warn("lock not released: the next run replaces it", "task", s.claim.Task, "err", err)
	}
}
