// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"errors"
	"runtime"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
)

// raftsLog is the log that Raft uses. It passes stored entries to the
// admission.
type raftsLog struct {
	*raftlog.Log
	admission *admission
	running   atomic.Bool // NewRaft has returned
}

// StoreLogs implements raft.LogStore.
func (l *raftsLog) StoreLogs(logs []*raft.Log) error {
	if err := l.Log.StoreLogs(logs); err != nil {
		return err
	}
	return l.admission.stored(logs...)
}

// GetLog implements raft.LogStore. If the entry is damaged, the store has
// failed, and stops Raft. Raft panics if it cannot read an entry that it must
// apply. GetLog therefore ends the calling goroutine, which belongs to Raft.
// Raft joins it as if it had returned.
func (l *raftsLog) GetLog(index uint64, log *raft.Log) error {
	err := l.Log.GetLog(index, log)
	if errors.Is(err, raftlog.ErrDamaged) && l.running.Load() {
		runtime.Goexit()
	}
	return err
}
