// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource/memory"
)

// Recovery is the directory of a stopped store whose group has lost a majority
// of its voters for good. Run makes this server the only voter.
type Recovery struct {
	// Node is the name of this server. Voters has the voters of the last
	// configuration in the log, sorted.
	Node   string
	Voters []string
	// LastIndex and LastTerm identify the last log entry. The voters may have
	// acknowledged later writes, which this server does not have. LastTime is
	// the time of the last entry, or zero if unknown.
	LastIndex, LastTerm uint64
	LastTime            time.Time

	store     *Store
	snapshots raft.SnapshotStore
}

// OpenRecovery locks the directory dir of a store, and reads its log. It
// returns an error if a process uses the directory, or if the directory has no
// Raft state. The caller closes the Recovery.
func OpenRecovery(dir string, logger *slog.Logger) (_ *Recovery, err error) {
	name, err := os.ReadFile(filepath.Join(dir, nodeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no Raft state; name the data directory of a server", dir)
	}
	if err != nil {
		return nil, err
	}
	cfg := Config{Node: strings.TrimSpace(string(name)), Dir: dir, Logger: logger}.withDefaults()
	state := memory.NewState()
	s := &Store{cfg: cfg, logger: logger, state: state, calls: newCalls(logger, state.Fail)}
	s.machine = &machine{state: state, fail: s.fail, restored: func() { s.log.Restored() }}
	r := &Recovery{Node: cfg.Node, store: s}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if s.dirLock, err = lockDir(dir, cfg.Node); err != nil {
		return nil, err
	}
	if r.snapshots, err = s.openLog(cfg.raftConfig()); err == nil {
		err = recovered(r.read)
	}
	if err != nil {
		return nil, fmt.Errorf("read data dir %s: %w", dir, err)
	}
	if r.LastIndex == 0 {
		return nil, fmt.Errorf("%s has no Raft state: the server has never been in a group", dir)
	}
	return r, nil
}

// read sets the exported fields from the newest snapshot and the log.
func (r *Recovery) read() error {
	metas, err := r.snapshots.List()
	if err != nil {
		return err
	}
	var conf raft.Configuration
	if len(metas) > 0 {
		var milliseconds int64
		m := metas[0]
		conf, r.LastIndex, r.LastTerm = m.Configuration, m.Index, m.Term
		if n, _ := fmt.Sscanf(m.ID, "%d-%d-%d", new(uint64), new(uint64), &milliseconds); n == 3 {
			r.LastTime = time.UnixMilli(milliseconds)
		}
	}
	last, err := r.store.log.LastIndex()
	if err != nil {
		return err
	}
	first, err := r.store.log.FirstIndex()
	if err != nil {
		return err
	}
	for index := max(first, r.LastIndex+1); index <= last; index++ {
		var entry raft.Log
		if err := r.store.log.GetLog(index, &entry); err != nil {
			return fmt.Errorf("log entry %d: %w", index, err)
		}
		if entry.Type == raft.LogConfiguration {
			conf = raft.DecodeConfiguration(entry.Data)
		}
		r.LastIndex, r.LastTerm, r.LastTime = index, entry.Term, entry.AppendedAt
	}
	for _, srv := range conf.Servers {
		if srv.Suffrage == raft.Voter {
			r.Voters = append(r.Voters, string(srv.ID))
		}
	}
	slices.Sort(r.Voters)
	return nil
}

// Run makes this server the only voter of its group, with all entries of its
// log. Entries that were not acknowledged become permanent. Run writes a
// snapshot and then deletes the log. If Run ends in between, the next start
// completes it.
//
// The index of the snapshot is far above LastIndex (see restorer.nextIndex).
// Therefore a new write never has the index or the version of a lost write, and
// a lost server that returns cannot replace entries of this server.
func (r *Recovery) Run() (index uint64, err error) {
	s, rc := r.store, r.store.cfg.raftConfig()
	index = max(uint64(max(time.Now().UnixMicro(), 0)), r.LastIndex+indexSlack)
	_, trans := raft.NewInmemTransport(raft.ServerAddress(r.Node))
	err = recovered(func() error {
		return raft.RecoverCluster(rc, s.machine, s.log, s.log, recoveredSnapshots{r.snapshots, index}, trans,
			raft.Configuration{Servers: []raft.Server{voter(r.Node)}})
	})
	if err == nil {
		err = s.admission.admit()
	}
	if err := errors.Join(err, s.Err()); err != nil {
		return 0, fmt.Errorf("recover data dir %s: %w", s.cfg.Dir, err)
	}
	return index, nil
}

// Close unlocks the directory.
func (r *Recovery) Close() error {
	var errs []error
	if r.store.log != nil {
		errs = append(errs, r.store.log.Close())
	}
	if r.store.dirLock != nil {
		errs = append(errs, r.store.dirLock.Close())
	}
	return errors.Join(errs...)
}

// recoveredSnapshots stores a snapshot at a fixed index.
type recoveredSnapshots struct {
	raft.SnapshotStore
	index uint64
}

func (s recoveredSnapshots) Create(
	version raft.SnapshotVersion, _, term uint64, group raft.Configuration, groupIndex uint64, trans raft.Transport,
) (raft.SnapshotSink, error) {
	return s.SnapshotStore.Create(version, s.index, term, group, groupIndex, trans)
}
