// SPDX-License-Identifier: MPL-2.0

package state

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/resource"
)

// maxLock bounds the JSON of a lock, in bytes.
const maxLock = 64 << 10

// lockInfo is the JSON form of a lock that Terraform sends and prints.
type lockInfo struct {
	ID        string
	Operation string
	Info      string
	Who       string
	Version   string
	Created   time.Time
	Path      string
}

// statusError is an error with its HTTP status.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func statusErrorf(status int, format string, args ...any) error {
	return &statusError{status, fmt.Errorf(format, args...)}
}

// serve serves a request of Terraform. The context stop ends when the Backend
// stops, and not with the connection: a state that was received is stored also
// if Terraform was killed.
func (b *Backend) serve(stop context.Context, w http.ResponseWriter, r *http.Request) {
	if r.Host != b.host { // a browser sends another name after DNS rebinding
		http.Error(w, "the Host header must be "+b.host, http.StatusForbidden)
		return
	}
	s := b.session(r)
	if s == nil {
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, "this request needs the password of the present run of the task", http.StatusUnauthorized)
		return
	}
	defer s.requests.Done()
	body, err := b.handle(stop, s, w, r)
	if err != nil {
		if r.Method != http.MethodGet || !errors.Is(err, ErrNoVersion) { // a new task has no state
			b.log.Warn("request of Terraform refused", "task", s.claim.Task, "method", r.Method, "err", err)
			b.mu.Lock()
			s.refused = cmp.Or(s.refused, err)
			b.mu.Unlock()
		}
		writeError(w, r, s, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // fails if Terraform has ended
}

// session returns the run that has sent r, or nil. It adds r to the requests of
// the run.
func (b *Backend) session(r *http.Request) *session {
	_, password, _ := r.BasicAuth()
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[strings.TrimPrefix(r.URL.Path, "/")]
	if e == nil || e.session == nil || subtle.ConstantTimeCompare([]byte(password), []byte(e.session.password)) != 1 {
		return nil
	}
	e.session.requests.Add(1)
	return e.session
}

// handle returns the body of the response.
func (b *Backend) handle(stop context.Context, s *session, w http.ResponseWriter, r *http.Request) ([]byte, error) {
	ctx, cancel := s.untilInterrupted(r.Context())
	defer cancel()
	switch r.Method {
	case http.MethodGet:
		if err := b.deliver(ctx, s.claim.Task); err != nil {
			return nil, err
		}
		data, _, err := b.cfg.Store.Get(ctx, s.claim.Task, 0)
		return data, err
	case http.MethodPost:
		data, err := readBody(w, r, MaxSize)
		if err != nil {
			return nil, err
		}
		return nil, b.store(stop, upload{claim: s.claim, run: s.run, lock: r.URL.Query().Get("ID"), data: data})
	case "LOCK":
		l, err := readLock(w, r)
		if err != nil {
			return nil, err
		}
		if err := b.deliver(ctx, s.claim.Task); err != nil {
			return nil, err
		}
		l.Run = s.run
		return nil, b.cfg.Store.Lock(ctx, s.claim, l)
	case "UNLOCK":
		l, err := readLock(w, r)
		if err != nil {
			return nil, err
		}
		return nil, b.cfg.Store.Unlock(ctx, s.claim, l.Id)
	}
	// Terraform deletes a state only with a workspace, which this backend does
	// not have. A request that deletes all versions would be a trap.
	w.Header().Set("Allow", "GET, POST, LOCK, UNLOCK")
	return nil, statusErrorf(http.StatusMethodNotAllowed, "the method must be GET, POST, LOCK or UNLOCK")
}

// untilInterrupted returns a context that ends interruptedTime after the run of s
// was interrupted. The caller calls cancel.
func (s *session) untilInterrupted(ctx context.Context) (_ context.Context, cancel context.CancelFunc) {
	ctx, cancel = context.WithCancel(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-s.interrupted:
			backoff.Sleep(ctx, interruptedTime, nil)
			cancel()
		}
	}()
	return ctx, cancel
}

// readBody returns the body of a request, of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, statusErrorf(http.StatusRequestEntityTooLarge, "the request has more than %d bytes", limit)
	}
	if err != nil {
		return nil, statusErrorf(http.StatusBadRequest, "read the request: %w", err)
	}
	return data, nil
}

func readLock(w http.ResponseWriter, r *http.Request) (*pb.TaskStateLock, error) {
	data, err := readBody(w, r, maxLock)
	if err != nil {
		return nil, err
	}
	var l lockInfo
	if err := json.Unmarshal(data, &l); err != nil || l.ID == "" || len(l.ID) > 256 {
		return nil, statusErrorf(http.StatusBadRequest, "the body must be the JSON of a lock with an ID")
	}
	return &pb.TaskStateLock{
		Id: l.ID, Operation: l.Operation, Info: l.Info, Who: l.Who, Version: l.Version, CreatedAt: timestamppb.New(l.Created), Path: l.Path,
	}, nil
}

// store stores a state, within holdTime. If no server responds, or the state is
// refused, it writes the state to a file: Terraform may have been killed, and
// have no other copy.
func (b *Backend) store(ctx context.Context, u upload) error {
	name := u.claim.Task
	e := b.entry(name)
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	ctx, cancel := context.WithTimeout(ctx, holdTime)
	defer cancel()
	journal := sync.OnceValue(func() error { return b.writeJournal(u) })
	written := make(chan struct{})
	timer := time.AfterFunc(journalAfter, func() {
		defer close(written)
		if err := journal(); err != nil {
			b.log.Error("state not written to a file", "task", name, "err", err)
		}
	})
	_, err := b.cfg.Store.Put(ctx, u.claim, u.data, PutOptions{Run: u.run, Check: u.isLocked})
	if !timer.Stop() {
		<-written
	}
	switch {
	case err == nil:
		return b.removeJournal(name)
	case errors.Is(err, resource.ErrInvalid):
		return errors.Join(err, b.removeJournal(name))
	}
	if jerr := journal(); jerr != nil {
		return errors.Join(err, jerr)
	}
	if !isPending(err) {
		return b.keep(name, err)
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return fmt.Errorf("no server has stored the state, which is in file %s until one does: %w", b.journalPath(name), err)
}

// isLocked is a check for Put: the state is locked with the lock of u.
func (u upload) isLocked(st *pb.TaskState) error {
	switch {
	case st.Lock.GetId() == u.lock:
		return nil
	case u.lock == "":
		return &LockedError{Task: u.claim.Task, Lock: st.Lock}
	case st.Lock == nil:
		return statusErrorf(http.StatusConflict, "the state of task %s is not locked any more by lock %s", u.claim.Task, u.lock)
	}
	return &statusError{http.StatusConflict, &LockedError{Task: u.claim.Task, Lock: st.Lock}}
}

// writeError writes an error response. The body for a lock is the JSON of the
// present lock. Terraform 1.11 prints only its ID, and prints its own lock as
// "Lock Info", so the ID has the error too.
func writeError(w http.ResponseWriter, r *http.Request, s *session, err error) {
	status := http.StatusInternalServerError
	with, hasStatus := errors.AsType[*statusError](err)
	locked, isLocked := errors.AsType[*LockedError](err)
	switch {
	case hasStatus:
		status = with.status
	case isLocked:
		status = http.StatusLocked
	case errors.Is(err, ErrReplaced):
		status = http.StatusConflict
	case errors.Is(err, ErrNoVersion):
		status = http.StatusNotFound
	case isPending(err):
		status = http.StatusServiceUnavailable
	case errors.Is(err, resource.ErrInvalid):
		status = http.StatusBadRequest
	}
	if r.Method != "LOCK" || status != http.StatusLocked && status != http.StatusConflict {
		http.Error(w, err.Error(), status)
		return
	}
	info := lockInfo{ID: err.Error(), Path: s.claim.Task}
	if isLocked {
		l := locked.Lock
		info = lockInfo{l.Id + ": " + locked.Error(), l.Operation, l.Info, l.Who, l.Version, l.CreatedAt.AsTime(), l.Path}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(info)
}
