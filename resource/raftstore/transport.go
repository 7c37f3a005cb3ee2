// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// transport is the library's, with three changes: a snapshot that this server does not need does not reach Raft (see history),
// a leader finds a server that comes back at once (see patience), and knows how far the others are (see progress).
type transport struct {
	*raft.NetworkTransport
	patience patience
	progress progress
	rpcc     chan raft.RPC // what Raft consumes
	stopc    chan struct{} // closed by Close
	stop     sync.Once
	work     sync.WaitGroup // forward, and the answers that it gives itself
}

var _ raft.WithPreVote = (*transport)(nil)

func newTransport(cfg *raft.NetworkTransportConfig) *transport {
	return &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(cfg),
		rpcc:             make(chan raft.RPC),
		stopc:            make(chan struct{}),
	}
}

func (t *transport) Consumer() <-chan raft.RPC { return t.rpcc }

func (t *transport) Close() error {
	t.stop.Do(func() { close(t.stopc) })
	t.patience.end()
	return t.NetworkTransport.Close()
}

// AppendEntries is the leader's call with entries, and its heartbeat.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	err := t.NetworkTransport.AppendEntries(id, target, req, resp)
	heartbeat := req.PrevLogEntry == 0 && len(req.Entries) == 0 && req.LeaderCommitIndex == 0 // as the other end has it
	if err == nil && resp.Term <= req.Term {
		match := uint64(0)
		if !heartbeat && resp.Success {
			match = req.PrevLogEntry + uint64(len(req.Entries))
		}
		t.progress.heard(id, req.Term, match)
	}
	switch {
	case heartbeat && err == nil:
		t.patience.heard(id)
	case !heartbeat && err != nil:
		t.patience.wait(id, req.Term)
	}
	return err
}

// InstallSnapshot is the leader's call too.
func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := t.NetworkTransport.InstallSnapshot(id, target, req, resp, data)
	if err != nil {
		t.patience.wait(id, req.Term)
	} else if resp.Success {
		t.progress.heard(id, req.Term, req.LastLogIndex)
	}
	return err
}

// wait returns when forward and what it started have. Call Close before, and end the connections.
func (t *transport) wait() { t.work.Wait() }

// forward hands calls of other servers to Raft, in order, until Close. Entries that look refuses, and snapshots that settle
// takes care of, it answers.
func (t *transport) forward(look func(*raft.AppendEntriesRequest) error, settle func(*raft.InstallSnapshotRequest) (done bool, err error)) {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-t.NetworkTransport.Consumer():
		case <-t.stopc:
			return
		}
		switch req := rpc.Command.(type) {
		case *raft.AppendEntriesRequest:
			if err := look(req); err != nil {
				rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: req.ProtocolVersion}, Term: req.Term}, err)
				continue
			}
		case *raft.InstallSnapshotRequest:
			if done, err := settle(req); done {
				t.work.Go(func() { answerInstall(rpc, req, err) })
				continue
			}
		}
		select {
		case t.rpcc <- rpc:
		case <-t.stopc:
			return
		}
	}
}

// answerInstall answers as one who has installed the snapshot, or could not. It reads the snapshot to its end, since the
// leader sends all of it before it reads an answer.
func answerInstall(rpc raft.RPC, req *raft.InstallSnapshotRequest, err error) {
	if _, rerr := io.Copy(io.Discard, rpc.Reader); rerr != nil && err == nil {
		err = rerr
	}
	resp := &raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: req.ProtocolVersion}, Term: req.Term, Success: err == nil}
	rpc.Respond(resp, err)
}

// settleInstall says whether Raft must not see a snapshot, and why it fails, if it does. One of an older term is Raft's to
// refuse.
func (s *Store) settleInstall(req *raft.InstallSnapshotRequest) (done bool, err error) {
	if req.Term < s.raft.CurrentTerm() {
		return false, nil
	}
	if at := s.unproven.at.Load(); at != nil {
		lost, err := s.unproven.hear(at, s.history.stores(at.Index), req.Term, req.LastLogIndex, 0)
		if lost {
			err = s.errLost(at)
			s.fail(err)
		}
		if err != nil {
			return true, err
		}
	}
	if s.history.covers(req.LastLogIndex, req.LastLogTerm) {
		s.log.Debug("raft snapshot not needed", "index", req.LastLogIndex)
		return true, nil
	}
	last, err := s.history.LastIndex()
	if err != nil {
		return true, err
	}
	if last > req.LastLogIndex {
		// Entries that never were committed, more of them than the leader kept of its own log behind its snapshot.
		err := fmt.Errorf("the log has entries up to %d that are not the leader's, whose snapshot covers %d; remove the data dir so that the server joins anew", last, req.LastLogIndex)
		s.fail(err)
		return true, err
	}
	if err := s.unproven.mark(req.LastLogIndex, req.Term); err != nil {
		return true, err
	}
	return false, nil
}
