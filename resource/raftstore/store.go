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
	"strconv"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// Store is the member of the Raft group in one server, with its log, its
// snapshots and its state. All methods may be called from any goroutine.
type Store struct {
	*calls
	*leadership
	*membership
	*restorer

	cfg       Config
	logger    *slog.Logger
	dirLock   *os.File
	log       *raftlog.Log
	openIndex uint64 // index of the last log entry when the log was opened
	streams   *streams
	trans     *transport
	state     *memory.State
	machine   *machine
	guard     *snapshotGuard
	admission *admission
	raft      *raft.Raft
	stopRaft  func() raft.Future // returns the same future on each call

	background sync.WaitGroup
	closeOnce  sync.Once
	closeErr   error
}

// Open reads the content of Config.Dir and starts Raft. Open fails if another
// process uses the directory, if the directory belongs to another node, or if
// the directory cannot be read. The error contains a remedy. The caller closes
// the store.
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
		calls: newCalls(cfg.Logger, state.Fail),
	}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.dirLock, err = lockDir(cfg.Dir, cfg.Node); err != nil {
		if notWritable(err) {
			err = fmt.Errorf("%w; %s", err, remedy(err, cfg.Node))
		}
		return nil, err
	}
	rc := cfg.raftConfig()
	var snapshots raft.SnapshotStore
	if snapshots, err = s.openLog(rc); err != nil {
		return nil, fmt.Errorf("read data dir %s: %w; %s", cfg.Dir, err, remedy(err, cfg.Node))
	}
	if err := s.startRaft(rc, snapshots); err != nil {
		return nil, fmt.Errorf("start raft from data dir %s: %w; %s", cfg.Dir, err, remedy(err, cfg.Node))
	}
	// Config.HoldVote holds the vote until other voters have reported what this
	// server had confirmed. Without other voters, no server can report that.
	if voters, err := s.Peers(); err != nil || len(voters) < 2 || !slices.Contains(voters, s.cfg.Node) {
		s.ReleaseVote()
	}
	s.background.Go(s.leadership.follow)
	s.background.Go(s.watchLog)
	if s.isOnlyVoter() {
		s.callElection()
	}
	return s, nil
}

// recovered calls f and converts a panic to an error. If a file is damaged, the
// libraries panic, or read mapped memory beyond the end of the file.
func recovered(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	return f()
}

// openLog opens the log and the snapshots, and returns the snapshot store for
// Raft.
func (s *Store) openLog(rc *raft.Config) (raft.SnapshotStore, error) {
	dir := s.cfg.Dir
	if err := removeTornSnapshots(dir); err != nil {
		return nil, err
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, retainSnapshots, rc.Logger)
	if err != nil {
		return nil, err
	}
	err = recovered(func() (err error) {
		s.log, err = raftlog.Open(raftlog.Config{
			Dir: filepath.Join(dir, logDir), SegmentSize: s.cfg.segmentSize,
			Snapshots: snapshots, SnapshotDir: filepath.Join(dir, snapshotDir), Logger: s.logger, Fail: s.failLog,
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
	s.admission = &admission{node: s.cfg.Node, fail: s.fail, logger: s.logger}
	if err := s.admission.open(dir, s.log); err != nil {
		return nil, err
	}
	s.admission.held.Store(s.cfg.HoldVote)
	s.openIndex, err = s.log.LastIndex()
	return s.log.Snapshots(), err
}

// failLog stops the store after an error of the log.
func (s *Store) failLog(err error) {
	if errors.Is(err, raftlog.ErrDamaged) {
		err = fmt.Errorf("%w; %s", err, remedy(err, s.cfg.Node))
	}
	s.fail(err)
}

// startRaft creates the state machine and all components that call Raft.
func (s *Store) startRaft(rc *raft.Config, snapshots raft.SnapshotStore) error {
	s.trans = newTransport(&raft.NetworkTransportConfig{
		Stream: s.streams, MaxPool: 3, Timeout: rpcTimeout, Logger: rc.Logger, MaxRPCsInFlight: rpcsInFlight,
	}, s.admission)
	s.leadership = &leadership{
		calls: s.calls, onLost: s.trans.holdback.release,
		onLead: func() error {
			if s.guard.pending() { // the barrier of the new term has committed the snapshot
				return s.guard.settle()
			}
			return nil
		},
	}
	s.machine = &machine{state: s.state, fail: s.fail, restored: func() {
		s.log.Restored()
		s.leadership.restored()
	}}
	logs := &raftsLog{Log: s.log, admission: s.admission}
	err := recovered(func() (err error) {
		s.raft, err = raft.NewRaft(rc, s.machine, logs, s.log, snapshots, s.trans)
		return err
	})
	logs.running.Store(true)
	if err != nil {
		return errors.Join(err, s.Err()) // Err has more details about an unreadable snapshot
	}
	s.stopRaft = sync.OnceValue(s.raft.Shutdown)
	s.leadership.raft = s.raft
	s.membership = &membership{
		calls: s.calls, leadership: s.leadership, node: s.cfg.Node, heartbeat: s.cfg.Heartbeat,
		raft: s.raft, trans: s.trans, admission: s.admission,
	}
	s.restorer = &restorer{
		calls: s.calls, leadership: s.leadership, dir: s.cfg.Dir, raft: s.raft, state: s.state, guard: s.guard,
	}
	s.trans.holdback.start(s.membership.leadsMember)
	checkEntries := func(req *raft.AppendEntriesRequest) error {
		if err := s.admission.checkEntries(req); err != nil {
			return err
		}
		return s.guard.checkEntries(req)
	}
	s.trans.work.Go(func() { s.trans.forward(checkEntries, s.guard.checkInstall) })
	return nil
}

// watchLog calls replayAlone when the log cannot be written, and
// replaceSnapshot when a snapshot cannot be read. It stops Raft when the store
// fails, so another server can lead.
func (s *Store) watchLog() {
	for {
		select {
		case <-s.log.CannotWrite():
			s.replayAlone()
		case <-s.log.SnapshotDamaged():
			s.background.Go(s.replaceSnapshot)
		case <-s.failedc:
			s.drain() // Raft drops results when it stops
			s.awaitRestore()
			s.stopRaft()
			s.trans.Close() // other servers would otherwise wait for responses
			return
		case <-s.donec:
			return
		}
	}
}

// replaceSnapshot writes a snapshot of the state, which is in memory, because
// the newest one on disk is damaged.
func (s *Store) replaceSnapshot() {
	if err := s.raft.Snapshot().Error(); err != nil && s.Err() == nil {
		s.logger.Error("cannot replace the damaged snapshot", "err", err)
	}
}

// Close stops Raft and unlocks the directory. Close first waits up to a second
// for pending commits. It then waits until this server has stored a snapshot
// that is being restored, and until all goroutines have ended. Close does not
// transfer leadership; call TransferLeadership first. Close is idempotent.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.refuse()
		s.drain() // before Raft stops, because Raft must complete the calls
		close(s.donec)
		s.awaitRestore()
		s.state.Close()
		s.closeErr = s.release()
	})
	return s.closeErr
}

// release closes the components that Open has started. A component is closed
// before the components that it uses.
func (s *Store) release() error {
	var errs []error
	if s.raft != nil {
		stopped := s.stopRaft()
		s.trans.Close() // without this, Shutdown waits until the calls of other servers time out
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

// Admitted returns a channel that is closed when this server may vote. A server
// with a new data directory has no vote until it has caught up, even if the
// group lists it as a voter. The same holds after Rejoin, which makes a new
// channel.
func (s *Store) Admitted() <-chan struct{} { return s.admission.admitted() }

// Rejoin keeps this server out of elections, also after a restart, as if its
// data directory were new. The server has a vote again when it has caught up as
// a member without a vote and the leader has made it a voter. Rejoin is called
// if the log lacks entries that this server had confirmed, of which base is the
// index of the last one, or if the group has removed this server.
func (s *Store) Rejoin(base uint64) error { return s.admission.rejoin(base) }

// VoteHeld reports whether Config.HoldVote holds the vote of this server.
func (s *Store) VoteHeld() bool { return s.admission.held.Load() }

// ReleaseVote ends the effect of Config.HoldVote.
func (s *Store) ReleaseVote() { s.admission.held.Store(false) }

// Confirmed returns term and index of the last log entry that another server,
// node, has confirmed to this server as its leader. Confirmations before Open do
// not count. 0, 0: there is none.
func (s *Store) Confirmed(node string) (term, index uint64) {
	e := s.trans.progress.get(raft.ServerID(node), 0).confirmed
	return e.term, e.index
}

// LacksEntry reports whether the log of this server ends before the entry with
// this term and index. The caller passes the entry that Confirmed of another
// server returned for this server.
func (s *Store) LacksEntry(term, index uint64) bool {
	last, err := strconv.ParseUint(s.raft.Stats()["last_log_term"], 10, 64)
	return err == nil && entryID{last, s.raft.LastIndex()}.before(entryID{term, index})
}

// Admit admits this server to elections at once. The caller knows that all
// servers of the group have new data directories.
func (s *Store) Admit() error { return s.admission.admit() }

// CaughtUp reports whether this server leads, or follows a known leader and has
// applied every entry that it knows to be committed.
func (s *Store) CaughtUp() bool {
	leader, known := s.Leader()
	committed := s.raft.CommitIndex()
	return s.IsLeader() ||
		known && leader != s.cfg.Node && committed > 0 && s.raft.AppliedIndex() >= committed
}
