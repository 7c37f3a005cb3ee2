// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"cmp"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// transport extends the transport of the Raft library. It passes entries and
// snapshots to Raft only if the snapshotGuard permits them. It lets a leader
// reach a returning server without a backoff (see holdback). It measures how
// far each server has replicated the log (see progress).
type transport struct {
	*raft.NetworkTransport
	holdback holdback
	progress progress
	// admission decides whether this server takes part in elections.
	admission *admission
	rpcc      chan raft.RPC // incoming calls for Raft; returned by Consumer
	stopc     chan struct{} // closed by Close
	stop      sync.Once
	work      sync.WaitGroup // goroutines of forward and respondInstall
}

var _ raft.WithPreVote = (*transport)(nil)

func newTransport(cfg *raft.NetworkTransportConfig, a *admission) *transport {
	return &transport{
		admission:        a,
		NetworkTransport: raft.NewNetworkTransportWithConfig(cfg),
		rpcc:             make(chan raft.RPC),
		stopc:            make(chan struct{}),
	}
}

func (t *transport) Consumer() <-chan raft.RPC { return t.rpcc }

func (t *transport) Close() error {
	t.stop.Do(func() { close(t.stopc) })
	t.holdback.stop()
	return t.NetworkTransport.Close()
}

// isHeartbeat reports whether req is a heartbeat. Raft uses the same condition.
func isHeartbeat(req *raft.AppendEntriesRequest) bool {
	return req.PrevLogEntry == 0 && len(req.Entries) == 0 && req.LeaderCommitIndex == 0
}

// AppendEntries implements raft.Transport. It also records how much of the log
// the server has, and informs holdback of success and failure.
func (t *transport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	err := t.NetworkTransport.AppendEntries(id, target, req, resp)
	heartbeat := isHeartbeat(req)
	if err == nil && resp.Term <= req.Term {
		match, entryTerm := uint64(0), req.PrevLogTerm
		if !heartbeat && resp.Success {
			match = req.PrevLogEntry + uint64(len(req.Entries))
		}
		if n := len(req.Entries); n > 0 {
			entryTerm = req.Entries[n-1].Term
		}
		t.progress.record(id, req.Term, match, entryTerm)
	}
	switch {
	case heartbeat && err == nil:
		t.holdback.reached(id)
	case !heartbeat && err != nil:
		t.holdback.wait(id, req.Term)
	}
	return err
}

// RequestVote implements raft.Transport.
func (t *transport) RequestVote(
	id raft.ServerID, target raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	if !t.admission.mayVote(req.LastLogIndex) {
		return errNoVote
	}
	return t.NetworkTransport.RequestVote(id, target, req, resp)
}

// RequestPreVote implements raft.WithPreVote.
func (t *transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, req *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	if !t.admission.mayVote(req.LastLogIndex) {
		return errNoVote
	}
	return t.NetworkTransport.RequestPreVote(id, target, req, resp)
}

func (t *transport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress,
	req *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	err := t.NetworkTransport.InstallSnapshot(id, target, req, resp, data)
	if err != nil {
		t.holdback.wait(id, req.Term)
	} else if resp.Success {
		t.progress.record(id, req.Term, req.LastLogIndex, req.LastLogTerm)
	}
	return err
}

// forward passes the calls of other servers to Raft, in order, until Close.
// Three kinds of calls do not reach Raft, because the transport responds to
// them: vote requests while the admission permits no vote, entries that
// checkEntries rejects, and snapshots that checkInstall handles.
func (t *transport) forward(
	checkEntries func(*raft.AppendEntriesRequest) error,
	checkInstall func(*raft.InstallSnapshotRequest) (handled bool, err error),
) {
	for {
		var rpc raft.RPC
		select {
		case rpc = <-t.NetworkTransport.Consumer():
		case <-t.stopc:
			return
		}
		switch req := rpc.Command.(type) {
		case *raft.RequestVoteRequest:
			if !t.admission.mayVote(req.LastLogIndex) {
				rpc.Respond(&raft.RequestVoteResponse{
					RPCHeader: raft.RPCHeader{ProtocolVersion: req.ProtocolVersion},
				}, nil)
				continue
			}
		case *raft.RequestPreVoteRequest:
			if !t.admission.mayVote(req.LastLogIndex) {
				rpc.Respond(&raft.RequestPreVoteResponse{
					RPCHeader: raft.RPCHeader{ProtocolVersion: req.ProtocolVersion},
				}, nil)
				continue
			}
		case *raft.AppendEntriesRequest:
			if err := checkEntries(req); err != nil {
				header := raft.RPCHeader{ProtocolVersion: req.ProtocolVersion}
				rpc.Respond(&raft.AppendEntriesResponse{RPCHeader: header, Term: req.Term}, err)
				continue
			}
		case *raft.InstallSnapshotRequest:
			if handled, err := checkInstall(req); handled {
				t.work.Go(func() { respondInstall(rpc, req, err) })
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

// respondInstall responds that the snapshot was installed, or that err
// prevented the installation. It reads the snapshot to its end, because the
// leader sends the whole snapshot before it reads a response.
func respondInstall(rpc raft.RPC, req *raft.InstallSnapshotRequest, err error) {
	_, readErr := io.Copy(io.Discard, rpc.Reader)
	err = cmp.Or(err, readErr)
	header := raft.RPCHeader{ProtocolVersion: req.ProtocolVersion}
	rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: header, Term: req.Term, Success: err == nil}, err)
}

// progress records the last entry that each server has confirmed to this
// leader. Raft tracks the same numbers but does not export them.
type progress struct {
	mu    sync.Mutex
	nodes map[raft.ServerID]peerProgress
}

type peerProgress struct {
	term    uint64    // term in which this server led and received match
	contact time.Time // time of the last response
	match   uint64    // index of the last entry that the logs of both servers share; 0: unknown
	// confirmed is the last entry that the server has confirmed in any term.
	confirmed entryID
}

// entryID identifies a log entry.
type entryID struct{ term, index uint64 }

// before reports whether a log that ends with e lacks entries of a log that ends
// with other. Elections compare logs in the same way.
func (e entryID) before(other entryID) bool {
	return e.term < other.term || e.term == other.term && e.index < other.index
}

// record records a response of server id to a call of this leader in term.
// match is the index of the last entry that the response confirms, or 0 for
// none. entryTerm is the term of that entry.
func (p *progress) record(id raft.ServerID, term, match, entryTerm uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.nodes == nil {
		p.nodes = make(map[raft.ServerID]peerProgress)
	}
	peer := p.nodes[id]
	if term > peer.term {
		peer = peerProgress{term: term, confirmed: peer.confirmed}
	}
	peer.contact = time.Now()
	if entry := (entryID{entryTerm, match}); match > 0 && peer.confirmed.before(entry) {
		peer.confirmed = entry
	}
	peer.match = max(peer.match, match)
	p.nodes[id] = peer
}

// get returns the progress of server id in term. match is 0 if the server has
// not confirmed an entry in that term.
func (p *progress) get(id raft.ServerID, term uint64) peerProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := p.nodes[id]
	if peer.term != term {
		peer = peerProgress{contact: peer.contact, confirmed: peer.confirmed}
	}
	return peer
}

// streams adapts the stream layer of Config to the transport of Raft. The
// address of streams is the node name. Close closes all connections, because
// the transport does not end the goroutines that read from accepted
// connections.
type streams struct {
	inner raft.StreamLayer
	node  nodeAddr

	handlers sync.WaitGroup // counts accepted connections until the transport closes them

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // open connections, accepted and dialed
	closed bool
}

func newStreams(inner raft.StreamLayer, node string) *streams {
	return &streams{inner: inner, node: nodeAddr(node), conns: make(map[net.Conn]struct{})}
}

// nodeAddr is a node's name as a network address.
type nodeAddr string

func (nodeAddr) Network() string  { return "node" }
func (a nodeAddr) String() string { return string(a) }

func (s *streams) Addr() net.Addr { return s.node }

func (s *streams) Accept() (net.Conn, error) {
	c, err := s.inner.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c, &s.handlers)
}

func (s *streams) Dial(node raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.inner.Dial(node, min(timeout, dialTimeout))
	if err != nil {
		return nil, err
	}
	return s.track(c, new(sync.WaitGroup))
}

// track registers c, so Close closes c. open counts c until the transport
// closes the returned connection.
func (s *streams) track(c net.Conn, open *sync.WaitGroup) (net.Conn, error) {
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.conns[c] = struct{}{}
		open.Add(1)
	}
	s.mu.Unlock()
	if closed {
		c.Close()
		return nil, net.ErrClosed
	}
	closeOnce := sync.OnceValue(func() error {
		err := c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		open.Done()
		return err
	})
	return &stream{c, closeOnce}, nil
}

// Close closes all connections and ends Accept and Dial. It is idempotent.
func (s *streams) Close() error {
	s.mu.Lock()
	closed, conns := s.closed, s.conns
	s.closed, s.conns = true, nil
	s.mu.Unlock()
	if closed {
		return nil
	}
	err := s.inner.Close()
	for c := range conns {
		c.Close()
	}
	return err
}

// stream is a connection of the transport.
type stream struct {
	net.Conn
	close func() error
}

func (c *stream) Close() error { return c.close() }
