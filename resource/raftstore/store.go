// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// Store is one server's part of the replicated store. Its methods may be called
// from any goroutine.
type Store struct {
	*calls
	*leadership
	*membership
	*restorer

	cfg       Config
	logger    *slog.Logger
	dirLock   *os.File
	log       *raftlog.Log
	openIndex uint64 // the last entry of the log when it was opened
	streams   *streams
	trans     *transport
	state     *memory.State
	machine   *machine
	guard     *snapshotGuard
	raft      *raft.Raft
	stopRaft  func() raft.Future // returns the same future each time

	background sync.WaitGroup
	closeOnce  sync.Once
	closeErr   error
}

// Open reads the content of Config.Dir and starts Raft. It fails if another
// process uses the directory, if the directory belongs to another node, or if
// it cannot be read. The error contains a remedy. The caller closes the store.
func Open(cfg Config) (_ *Store, err error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		if cfg.Stream != nil {
			cfg.Stream.Close()
		}
		return nil, err
	}
	state := memory.NewState()
	s := &Store{
		cfg: cfg, logger: cfg.Logger, state: state, streams: newStreams(cfg.Stream, cfg.Node),
		calls: newCalls(cfg.Logger, state.Close), // ends watches and waits, which then return the reason
	}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.dirLock, err = lockDir(cfg.Dir, cfg.Node); err != nil {
		if notWritable(err) {
			err = fmt.Errorf("%w; %s", err, remedy(err))
		}
		return nil, err
	}
	rc := cfg.raftConfig()
	var snapshots raft.SnapshotStore
	if snapshots, err = s.openLog(rc); err != nil {
		return nil, fmt.Errorf("read data dir %s: %w; %s", cfg.Dir, err, remedy(err))
	}
	if err := s.startRaft(rc, snapshots); err != nil {
		return nil, fmt.Errorf("start raft from data dir %s: %w; %s", cfg.Dir, err, remedy(err))
	}
	s.background.Go(s.leadership.follow)
	s.background.Go(s.watchLog)
	if s.isOnlyVoter() {
		s.callElection()
	}
	return s, nil
}

// recovered calls f and returns its panic as an error. The libraries panic, or
// read memory that a truncated file no longer backs, when a directory is
// damaged.
func recovered(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	return f()
}

// openLog opens the log and the snapshots, and returns the latter for Raft.
func (s *Store) openLog(rc *raft.Config) (raft.SnapshotStore, error) {
	dir := s.cfg.Dir
	err := errors.Join(
		removeAll("torn snapshot", filepath.Join(dir, snapshotDir, "*.tmp")),
		removeAll("torn snapshot", filepath.Join(dir, spoolPattern)))
	if err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, rc.Logger)
	if err != nil {
		return nil, err
	}
	err = recovered(func() (err error) {
		s.log, err = raftlog.Open(raftlog.Config{
			Dir: filepath.Join(dir, logDir), SegmentSize: s.cfg.SegmentSize,
			Snapshots: snapshots, Logger: s.logger, Fail: s.fail,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	s.guard = &snapshotGuard{
		node: s.cfg.Node, log: s.log, fail: s.fail, logger: s.logger,
		term: func() uint64 { return s.raft.CurrentTerm() },
	}
	if err := s.guard.open(dir); err != nil {
		return nil, err
	}
	s.openIndex, err = s.log.LastIndex()
	return s.log.Snapshots(), err
}

// startRaft creates the state machine and all components that call Raft.
func (s *Store) startRaft(rc *raft.Config, snapshots raft.SnapshotStore) error {
	s.trans = newTransport(&raft.NetworkTransportConfig{
		Stream: s.streams, MaxPool: 3, Timeout: rpcTimeout, Logger: rc.Logger, MaxRPCsInFlight: rpcsInFlight,
	})
	s.leadership = &leadership{
		calls: s.calls, logger: s.logger, onLost: s.trans.holdback.release,
		onLead: func() error {
			if s.guard.pending() { // the barrier was committed, and everything before it
				return s.guard.settle()
			}
			return nil
		},
	}
	s.machine = &machine{state: s.state, fail: s.fail, restored: func() {
		s.log.Restored()
		s.leadership.restored()
	}}
	err := recovered(func() (err error) {
		s.raft, err = raft.NewRaft(rc, s.machine, s.log, s.log, snapshots, s.trans)
		return err
	})
	if err != nil {
		return errors.Join(err, s.Err()) // the latter has more details about a snapshot that cannot be read
	}
	s.stopRaft = sync.OnceValue(s.raft.Shutdown)
	s.leadership.raft = s.raft
	s.membership = &membership{
		calls: s.calls, leadership: s.leadership, node: s.cfg.Node, heartbeat: s.cfg.Heartbeat,
		raft: s.raft, trans: s.trans, logger: s.logger,
	}
	s.restorer = &restorer{
		calls: s.calls, leadership: s.leadership, dir: s.cfg.Dir,
		raft: s.raft, state: s.state, guard: s.guard, logger: s.logger,
	}
	s.trans.holdback.start(s.membership.leadsMember)
	s.trans.work.Go(func() { s.trans.forward(s.guard.checkEntries, s.guard.checkInstall) })
	return nil
}

// When the log cannot be written, watchLog calls replayAlone, so that readers
// see the content of the log. It stops Raft when the store fails, so that
// another server can lead.
func (s *Store) watchLog() {
	for {
		select {
		case <-s.log.CannotWrite():
			s.replayAlone()
		case <-s.failedc:
			s.drain() // Raft drops results when it stops
			s.awaitRestore()
			s.stopRaft()
			s.trans.Close() // otherwise other servers wait for responses
			return
		case <-s.donec:
			return
		}
	}
}

// Close stops Raft and unlocks the directory. It waits up to a second for
// pending commits, for this server's part of a snapshot that is being restored,
// and for all goroutines. It does not transfer leadership. For a transfer, call
// TransferLeadership first. It is idempotent.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.refuse()
		s.drain() // while Raft can still complete them
		close(s.donec)
		s.awaitRestore()
		s.state.Close()
		s.closeErr = s.release()
	})
	return s.closeErr
}

// release stops and closes the parts that Open has started, each part before the
// parts that it uses.
func (s *Store) release() error {
	var errs []error
	if s.raft != nil {
		stopped := s.stopRaft()
		s.trans.Close() // otherwise Shutdown waits for calls of other servers to time out
		errs = append(errs, stopped.Error())
	} else if s.trans != nil {
		s.trans.Close()
	}
	errs = append(errs, s.streams.Close())
	s.streams.handlers.Wait() // the transport has closed all accepted connections
	if s.trans != nil {
		s.trans.work.Wait()
	}
	s.background.Wait()
	s.drain()
	if s.log != nil {
		errs = append(errs, s.log.Close())
	}
	if s.dirLock != nil {
		errs = append(errs, s.dirLock.Close())
	}
	return errors.Join(errs...)
}

// Stats describes a store for an operator.
type Stats struct {
	Node   string
	State  string // "follower", "candidate", "leader" or "stopped"
	Leader string // node; "" if none is known
	Term   uint64
	// LastIndex is the last entry in the log, CommitIndex the last one known to
	// be committed, AppliedIndex the last one passed to the state machine,
	// StoreIndex the last one that changed a resource.
	LastIndex, CommitIndex, AppliedIndex, StoreIndex uint64
	// LastContact is the time since the last contact with the leader: 0 on the
	// leader, -1 if there was none.
	LastContact time.Duration
	Voters      []string
}

var stateNames = map[raft.RaftState]string{
	raft.Follower: "follower", raft.Candidate: "candidate", raft.Leader: "leader", raft.Shutdown: "stopped",
}

// Stats returns the numbers of the store. They are not read at the same moment.
func (s *Store) Stats() Stats {
	leader, _ := s.Leader()
	voters, _ := s.Peers() // none if the store is closed
	return Stats{
		Node:         s.cfg.Node,
		State:        stateNames[s.raft.State()],
		Leader:       leader,
		Term:         s.raft.CurrentTerm(),
		LastIndex:    s.raft.LastIndex(),
		CommitIndex:  s.raft.CommitIndex(),
		AppliedIndex: s.raft.AppliedIndex(),
		StoreIndex:   s.state.Index(),
		LastContact:  s.LastContact(),
		Voters:       voters,
	}
}
