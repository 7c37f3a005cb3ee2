// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"context"
	"fmt"

	"github.com/wanfed/wanfed/resource"
)

var _ resource.ReplicatedBackend = (*Store)(nil)

// ReadIndex is resource.ReplicatedBackend's. It blocks for a round trip to a majority, and writes nothing.
func (s *Store) ReadIndex(ctx context.Context) (uint64, error) {
	if err := s.fresh(ctx, resource.Strong); err != nil {
		return 0, fmt.Errorf("read index: %w", err)
	}
	return s.state.Index(), nil
}

// WaitIndex is resource.ReplicatedBackend's.
func (s *Store) WaitIndex(ctx context.Context, index uint64) error {
	return s.because(s.state.WaitIndex(ctx, index))
}
