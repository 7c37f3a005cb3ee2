// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"github.com/hashicorp/raft-wal/segment"

	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
)

// Store is one server's part of the replicated store. Its methods may be called from any goroutine.
type Store struct {
	cfg     Config
	log     *slog.Logger
	lock    *os.File
	wal     *wal.WAL
	disk    *disk
	streams *streams
	trans   *transport
	history *history
	machine *machine
	opened  uint64 // the last entry of the log when it was opened
	raft    *raft.Raft
	stop    func() raft.Future // stops raft; the same future each time
	state   *memory.State

	unproven  unproven
	restoreMu sync.Mutex // held while a snapshot is restored
	restoring atomic.Pointer[restoring]

	closingc chan struct{}  // closed when closing is set
	donec    chan struct{}  // closed when Close no longer waits for calls under way
	answers  answers        // to commits
	calls    sync.WaitGroup // calls of Raft that wait for their answer; added to with mu held and closing false
	follow   sync.WaitGroup // followLeadership

	failedc chan struct{} // closed when err is set

	mu      sync.Mutex
	closing bool
	err     error // why the store failed
	view    view
	changed chan struct{} // closed, and replaced, when view changes

	closeOnce sync.Once
	closeErr  error
}

var _ resource.Backend = (*Store)(nil)

// Open reads what Dir holds and starts Raft. It fails, naming what to do, for a directory that another process uses, that
// belongs to another node, or whose files are not to be read. The caller closes the store.
func Open(cfg Config) (_ *Store, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		if cfg.Stream != nil {
			cfg.Stream.Close()
		}
		return nil, err
	}
	s := &Store{
		cfg:      cfg,
		log:      cfg.Logger,
		streams:  newStreams(cfg.Stream, cfg.Node),
		state:    memory.NewState(),
		closingc: make(chan struct{}),
		donec:    make(chan struct{}),
		failedc:  make(chan struct{}),
		changed:  make(chan struct{}),
	}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.lock, err = lockDir(cfg.Dir, cfg.Node); err != nil {
		if unusable(err) {
			err = fmt.Errorf("%w; %s", err, remedy(err))
		}
		return nil, err
	}
	if err := s.openLog(); err != nil {
		return nil, fmt.Errorf("read data dir %s: %w; %s", cfg.Dir, err, remedy(err))
	}
	if err := s.startRaft(); err != nil {
		return nil, fmt.Errorf("start raft from data dir %s: %w; %s", cfg.Dir, err, remedy(err))
	}
	s.follow.Go(s.followLeadership)
	if s.alone() {
		s.hurry()
	}
	return s, nil
}

// unpanicked calls f and returns its panic as an error. The libraries panic, or touch memory that a cut file no longer
// backs, when they read a damaged directory.
func unpanicked(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	return f()
}

func (s *Store) openLog() error {
	dir := filepath.Join(s.cfg.Dir, logDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := errors.Join(removeTorn(s.cfg.Dir), removeSpools(s.cfg.Dir)); err != nil {
		return err
	}
	meta, room := &metadb.BoltMetaDB{}, newRoom(dir, s.cfg.SegmentSize)
	return unpanicked(func() (err error) {
		defer func() {
			if s.wal == nil {
				meta.Close() // wal.Open leaves it open, and locked, when it fails
			}
		}()
		if err := finishRotation(dir, meta, s.cfg.SegmentSize); err != nil {
			return err
		}
		s.wal, err = wal.Open(dir,
			wal.WithMetaStore(meta),
			wal.WithSegmentFiler(segment.NewFiler(dir, room)),
			wal.WithSegmentSize(s.cfg.SegmentSize),
			wal.WithMetricsCollector(walMetrics{}),
			wal.WithLogger(slogadapter.New(slog.New(slogadapter.Demote(s.log.Handler())), "wal")))
		s.disk = &disk{wal: s.wal, room: room, log: s.log, fail: s.failLog, told: make(chan struct{}, 1)}
		return err
	})
}

func (s *Store) startRaft() error {
	rc := s.cfg.raftConfig()
	snaps, err := raft.NewFileSnapshotStoreWithLogger(s.cfg.Dir, retainSnapshots, rc.Logger)
	if err != nil {
		return err
	}
	s.trans = newTransport(&raft.NetworkTransportConfig{
		Stream: s.streams, MaxPool: 3, Timeout: rpcTimeout, Logger: rc.Logger, MaxRPCsInFlight: rpcsInFlight,
	})
	s.history = &history{WAL: s.wal, disk: s.disk}
	s.machine = &machine{state: s.state, answers: &s.answers, restored: func() { s.history.restored(); s.anew() }, fail: s.fail}
	err = unpanicked(func() error {
		if err := s.history.open(snaps); err != nil {
			return err
		}
		if err := s.unproven.open(s.cfg.Dir, s.history.covered()); err != nil {
			return err
		}
		if s.opened, err = s.history.LastIndex(); err != nil {
			return err
		}
		r, err := raft.NewRaft(rc, s.machine, s.history, ballot{s.wal, s.disk}, snapshots{snaps, s.history}, s.trans)
		if err == nil {
			s.raft, s.stop = r, sync.OnceValue(r.Shutdown)
		}
		return err
	})
	if err != nil {
		return errors.Join(err, s.Err()) // the latter says more of a snapshot that cannot be read
	}
	s.trans.patience.start(func(id raft.ServerID, term uint64) bool {
		voters, err := s.Peers()
		return err == nil && slices.Contains(voters, string(id)) && s.raft.State() == raft.Leader && s.raft.CurrentTerm() == term
	})
	s.trans.work.Go(func() { s.trans.forward(s.settleEntries, s.settleInstall) })
	return nil
}

// fail makes the store useless, with err as the reason. followLeadership then stops Raft, so that another server can lead.
func (s *Store) fail(err error) {
	s.mu.Lock()
	first := s.err == nil
	if first {
		s.err = err
	}
	s.mu.Unlock()
	if first {
		s.log.Error("store stopped", "err", err)
		s.state.Close() // ends watches and waits, which then find err
		close(s.failedc)
	}
}

// Failed returns a channel that is closed if the store can go no further; Err says why then.
func (s *Store) Failed() <-chan struct{} { return s.failedc }

// Err returns why the store failed, resource.ErrClosed after Close, and nil while it works.
func (s *Store) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errLocked()
}

// failure returns why the store failed, if it did.
func (s *Store) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *Store) errLocked() error {
	switch {
	case s.err != nil:
		return s.err
	case s.closing:
		return resource.ErrClosed
	}
	return nil
}

// because replaces the state's ErrClosed with the reason, if there is a better one.
func (s *Store) because(err error) error {
	if errors.Is(err, resource.ErrClosed) {
		if why := s.Err(); why != nil {
			return why
		}
	}
	return err
}

// Close stops Raft and gives up the directory. It waits for commits under way up to a second, for a snapshot that is being
// restored until this server has done its part, and for all goroutines. It does not transfer leadership; a leader that is about to stop does that first. It is idempotent.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		close(s.closingc)
		s.mu.Unlock()
		s.drain() // while Raft can still finish them
		close(s.donec)
		s.awaitRestore()
		s.state.Close()
		s.closeErr = s.release()
	})
	return s.closeErr
}

// drain waits for calls of Raft, not for ever.
func (s *Store) drain() {
	drained := make(chan struct{})
	go func() { s.calls.Wait(); close(drained) }()
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-drained:
	case <-timeout.C:
	}
}

// release stops and closes what Open has started so far, in the order in which each uses the next.
func (s *Store) release() error {
	var errs []error
	if s.raft != nil {
		stopped := s.stop()
		s.trans.Close() // or Shutdown would wait for calls of other servers to time out
		errs = append(errs, stopped.Error())
	} else if s.trans != nil {
		s.trans.Close()
	}
	errs = append(errs, s.streams.Close())
	s.streams.wait()
	if s.trans != nil {
		s.trans.wait()
	}
	s.follow.Wait()
	s.drain()
	if s.wal != nil {
		errs = append(errs, s.wal.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}
