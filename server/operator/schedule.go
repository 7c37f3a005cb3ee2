// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// snapshotRetry is the maximum pause after a scheduled snapshot failed.
const snapshotRetry = time.Minute

// slotFormat is the format of the time in the name of a scheduled snapshot.
const slotFormat = "20060102T150405Z"

// ScheduleConfig configures a Schedule. All fields are required.
type ScheduleConfig struct {
	DC, Node string
	// Every is the time between two snapshots. 0 means that the server writes
	// none.
	Every time.Duration
	// Dir is the directory of the snapshots. Run creates it with mode 0700.
	Dir string
	// Keep is the number of scheduled snapshots that stay in Dir.
	Keep int
	// Take returns a snapshot, as Store.Snapshot does.
	Take   func(context.Context) (*raftstore.Snapshot, error)
	Logger *slog.Logger
}

// Schedule writes snapshots at the multiples of Every since year 1, in UTC. The
// times do not depend on the start of a leader. Therefore a change of the leader
// causes no second snapshot for one time.
type Schedule struct {
	cfg ScheduleConfig

	mu   sync.Mutex
	last time.Time
	err  error
}

// NewSchedule returns a Schedule.
func NewSchedule(cfg ScheduleConfig) *Schedule { return &Schedule{cfg: cfg} }

// ScheduleStatus is the state of a Schedule.
type ScheduleStatus struct {
	Enabled bool
	Last    time.Time // time of the last snapshot that this server wrote; zero if none
	Err     error     // reason why the last attempt failed, or nil
}

// Status returns the state. It does not block.
func (s *Schedule) Status() ScheduleStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ScheduleStatus{s.cfg.Every > 0, s.last, s.err}
}

func (s *Schedule) setStatus(last time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if last.After(s.last) {
		s.last = last
	}
}

// Run writes the snapshots until ctx ends. Only the leader may run it. A failed
// snapshot is logged, and attempted again.
func (s *Schedule) Run(ctx context.Context) error {
	if s.cfg.Every == 0 {
		return nil
	}
	s.setStatus(s.newest(), nil)
	for {
		slot := time.Now().UTC().Truncate(s.cfg.Every).Add(s.cfg.Every)
		backoff.Sleep(ctx, time.Until(slot), nil)
		for ctx.Err() == nil {
			err := s.write(ctx, slot)
			if ctx.Err() != nil {
				break
			}
			s.setStatus(s.newest(), err)
			if err == nil {
				break
			}
			s.cfg.Logger.Error("cannot write a scheduled snapshot", "err", err)
			backoff.Sleep(ctx, min(s.cfg.Every, snapshotRetry), nil)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// write writes the snapshot of slot and then removes old ones.
func (s *Schedule) write(ctx context.Context, slot time.Time) error {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	path := filepath.Join(s.cfg.Dir, s.prefix()+slot.Format(slotFormat)+".snap")
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	saved, err := s.cfg.Take(ctx)
	if err != nil {
		return err
	}
	file, err := raftstore.CreateArchive(path)
	if err != nil {
		return err
	}
	m := raftstore.Manifest{
		Version: version.Version, Datacenter: s.cfg.DC, Node: s.cfg.Node, CreatedAt: time.Now(),
		Index: saved.Index(), Term: saved.Term,
	}
	sum := sha256.New()
	if m.Size, err = saved.WriteTo(io.MultiWriter(file, sum)); err != nil {
		return errors.Join(fmt.Errorf("write snapshot file %s: %w", path, err), file.Abort())
	}
	m.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if err := file.Commit(m); err != nil {
		return err
	}
	s.cfg.Logger.Info("scheduled snapshot written", "file", path, "index", m.Index, "bytes", m.Size)
	return s.removeOld()
}

func (s *Schedule) prefix() string { return s.cfg.DC + "-scheduled-" }

// files returns the names of the scheduled snapshots, oldest first. It ignores
// every file that does not have the name of a scheduled snapshot.
func (s *Schedule) files() (names []string, err error) {
	entries, err := os.ReadDir(s.cfg.Dir)
	for _, e := range entries {
		if e.Type().IsRegular() && !s.slotOf(e.Name()).IsZero() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

// slotOf returns the time in the name of a scheduled snapshot, or the zero time.
func (s *Schedule) slotOf(name string) time.Time {
	text, ok := strings.CutPrefix(name, s.prefix())
	text, ok2 := strings.CutSuffix(text, ".snap")
	slot, err := time.Parse(slotFormat, text)
	if !ok || !ok2 || err != nil {
		return time.Time{}
	}
	return slot
}

// newest returns the time of the newest scheduled snapshot, or the zero time.
func (s *Schedule) newest() time.Time {
	names, _ := s.files()
	if len(names) == 0 {
		return time.Time{}
	}
	return s.slotOf(names[len(names)-1])
}

// removeOld removes all scheduled snapshots except the newest Keep.
func (s *Schedule) removeOld() error {
	names, err := s.files()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names[:max(0, len(names)-s.cfg.Keep)] {
		errs = append(errs, os.Remove(filepath.Join(s.cfg.Dir, name)))
	}
	return errors.Join(errs...)
}
