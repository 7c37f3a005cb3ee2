// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource"
)

const (
	// checkpointInterval is the time between two checkpoints of a leader.
	checkpointInterval = 5 * time.Minute
	// compareTimeout bounds the time in which the other servers must reach a
	// checkpoint. The digest of a server that is later is not compared.
	compareTimeout = 30 * time.Second
	// resyncTimeout bounds one attempt to replace the state of this server.
	resyncTimeout = 10 * time.Minute
)

// Comparison is the result of the comparison of the servers' states.
type Comparison struct {
	// Index is the log index of the compared states. 0: nothing was compared.
	Index uint64
	// Compared is the number of servers that were compared.
	Compared int
	// Differ has the servers whose state differs from that of a majority. If
	// there is no majority, Differ has all compared servers. Sorted.
	Differ []string
	// Digests has the digest of each compared server.
	Digests map[string]string
	// Majority is true if a majority of the voters has equal states.
	Majority bool
}

// Comparison returns the latest result. Every server compares.
func (s *Service) Comparison() Comparison {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comparison
}

// RunCheckpoints makes all servers of the group take a checkpoint every
// checkpointInterval until ctx ends. It runs at the leader. A single server has
// nothing to compare with.
func (s *Service) RunCheckpoints(ctx context.Context) error {
	interval := s.CheckpointInterval
	if interval == 0 {
		interval = checkpointInterval
	}
	for {
		backoff.Sleep(ctx, interval, nil)
		if ctx.Err() != nil {
			return nil
		}
		if voters, err := s.Store.Peers(); err != nil || len(voters) < 2 {
			continue
		}
		if err := s.Store.Checkpoint(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Debug("cannot append a checkpoint", "err", err) // the next one is in a few minutes
		}
	}
}

// RunComparison compares the digest of the local state with those of the other
// servers after each checkpoint, until ctx ends. If a majority has another
// state, it replaces the local state with a snapshot of the leader.
func (s *Service) RunComparison(ctx context.Context) error {
	for ctx.Err() == nil {
		changed := s.Store.CheckpointChanged()
		if c := s.compare(ctx); c.Compared > 1 {
			s.report(c)
			if c.Majority && slices.Contains(c.Differ, s.Node) {
				if err := s.resync(ctx, c.Differ); err != nil && ctx.Err() == nil {
					s.Logger.Error("cannot resynchronize the store; the next attempt is after the next checkpoint",
						"err", err)
				}
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

// report stores and logs a comparison.
func (s *Service) report(c Comparison) {
	s.mu.Lock()
	previous := s.comparison
	s.comparison = c
	s.mu.Unlock()
	switch {
	case len(c.Differ) > 0:
		s.Logger.Error("stores differ: check the disk and the memory of the named servers", "nodes", c.Differ,
			"index", c.Index, "majority", c.Majority, "reason", c.Detail())
	case len(previous.Differ) > 0:
		s.Logger.Info("stores equal again", "index", c.Index)
	}
}

// compare requests the digests of all voters at the latest checkpoint.
func (s *Service) compare(ctx context.Context) Comparison {
	ctx, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	index, digest, err := s.Store.Digest()
	if err != nil {
		s.Logger.Error("cannot compute the digest of the store", "err", err)
	}
	voters, votersErr := s.Store.Peers()
	if err != nil || votersErr != nil || index == 0 {
		return Comparison{}
	}
	digests := map[string]string{s.Node: digest}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, node := range voters {
		if node == s.Node {
			continue
		}
		wg.Go(func() {
			if d := s.digestOf(ctx, node, index); d != "" {
				mu.Lock()
				defer mu.Unlock()
				digests[node] = d
			}
		})
	}
	wg.Wait()
	c := judge(digests, len(voters))
	c.Index = index
	return c
}

// digestOf returns the digest of node at the checkpoint at index. It waits
// until node has reached the checkpoint. It returns "" if node is already at a
// later one, runs another version, or does not respond.
func (s *Service) digestOf(ctx context.Context, node string, index uint64) string {
	for ctx.Err() == nil {
		cc, err := s.Connect(node)
		if err != nil {
			return ""
		}
		resp, err := pb.NewOperatorServiceClient(cc).Digest(ctx, &pb.DigestRequest{})
		switch {
		case err != nil || resp.Version != buildVersion() || resp.Index > index:
			return ""
		case resp.Index == index:
			return resp.Digest
		}
		backoff.Sleep(ctx, time.Second/2, nil)
	}
	return ""
}

// judge compares digests by node. voters is the number of voters of the group.
func judge(digests map[string]string, voters int) Comparison {
	count := map[string]int{}
	for _, d := range digests {
		count[d]++
	}
	c := Comparison{Compared: len(digests), Digests: digests}
	right := ""
	for d, n := range count {
		if n > voters/2 {
			right, c.Majority = d, true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(digests)) {
		if len(count) > 1 && digests[node] != right {
			c.Differ = append(c.Differ, node)
		}
	}
	return c
}

// Digest implements pb.OperatorServiceServer.
func (s *Service) Digest(context.Context, *pb.DigestRequest) (*pb.DigestResponse, error) {
	index, digest, err := s.Store.Digest()
	if err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.DigestResponse{Index: index, Digest: digest, Version: buildVersion()}, nil
}

func buildVersion() string { return version.Version + " " + version.Get().Commit }

// resync replaces the state of this server with a snapshot of the leader.
// differ has the servers whose state is wrong. If this server leads, it first
// transfers leadership.
func (s *Service) resync(ctx context.Context, differ []string) error {
	ctx, cancel := context.WithTimeout(ctx, resyncTimeout)
	defer cancel()
	leader, err := s.otherLeader(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(differ, leader) {
		return fmt.Errorf("the leader %s differs too", leader)
	}
	cc, err := s.Connect(leader)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", leader, err)
	}
	stream, err := pb.NewOperatorServiceClient(cc).SaveSnapshot(ctx, &pb.SaveSnapshotRequest{})
	if err == nil {
		_, err = stream.Recv() // the manifest
	}
	if err == nil {
		err = s.Store.Resync(ctx, &partReader{recv: stream.Recv})
	}
	if err != nil {
		return fmt.Errorf("snapshot of %s: %w", leader, err)
	}
	s.Logger.Warn("store resynchronized: the wrong state was replaced with a snapshot", "leader", leader)
	return nil
}

// otherLeader returns the leader after this server has transferred its own
// leadership.
func (s *Service) otherLeader(ctx context.Context) (string, error) {
	if s.Store.IsLeader() {
		if err := s.Store.TransferLeadership(ctx); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, successorTimeout)
	defer cancel()
	for {
		changed := s.Store.LeaderChanged()
		if leader, ok := s.Store.Leader(); ok && leader != s.Node {
			return leader, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", errors.New("no other server leads")
		}
	}
}

// Detail describes c for the status of a server.
func (c Comparison) Detail() string {
	switch {
	case c.Index == 0:
		return "not compared yet"
	case len(c.Differ) == 0:
		return fmt.Sprintf("%d servers have equal stores at index %d", c.Compared, c.Index)
	case c.Majority:
		return fmt.Sprintf("the store of %s differs from that of the majority at index %d, and is replaced with a "+
			"snapshot of the leader: check disk and memory there", strings.Join(c.Differ, ", "), c.Index)
	}
	digests := make([]string, 0, len(c.Differ))
	for _, node := range c.Differ {
		digests = append(digests, fmt.Sprintf("%.12s on %s", c.Digests[node], node))
	}
	right, wrong := c.Differ[0], c.Differ[1]
	return fmt.Sprintf("the stores differ at index %d, and no majority is equal: digest %s; check disk and memory, and "+
		"compare the resources; if %s is right: wanfed operator raft transfer-leader %[3]s, then wanfed operator raft "+
		"remove-peer %[4]s --force, then stop %[4]s, remove its data dir and start it again",
		c.Index, strings.Join(digests, ", "), right, wrong)
}
