// SPDX-License-Identifier: MPL-2.0

package operator

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/resource/raftstore"
)

// scheduleTest is a Schedule with an interval of an hour. It keeps three
// snapshots.
type scheduleTest struct {
	*Schedule
	dir   string
	fails time.Time // snapshots fail until this time
}

func newScheduleTest(t *testing.T) *scheduleTest {
	t.Helper()
	s := &scheduleTest{dir: filepath.Join(t.TempDir(), "snapshots")}
	state := memory.NewState()
	r, err := resource.New(&pb.Type{Group: "test", GroupVersion: "v1", Kind: "Thing"}, "a", &pb.Group{Id: "1"})
	if err != nil {
		t.Fatal(err)
	}
	state.Apply(&memory.Entry{Index: 7, Ops: []*pb.Op{resource.PutOp(r, "")}})
	s.Schedule = NewSchedule(ScheduleConfig{
		DC: "dc1", Node: "srv1", Every: time.Hour, Dir: s.dir, Keep: 3, Logger: slog.New(slog.DiscardHandler),
		Take: func(context.Context) (*raftstore.Snapshot, error) {
			if time.Now().Before(s.fails) {
				return nil, errors.New("disk full")
			}
			return &raftstore.Snapshot{Snapshot: state.Snapshot(), Term: 2}, nil
		},
	})
	return s
}

// lead runs the schedule for d.
func (s *scheduleTest) lead(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

// names returns the names of all files, without the prefix of scheduled
// snapshots.
func (s *scheduleTest) names(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, strings.TrimPrefix(e.Name(), "dc1-scheduled-"))
	}
	return names
}

func TestSchedule(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) { // the time is midnight, 2000-01-01
		s := newScheduleTest(t)
		s.lead(t, 90*time.Minute)
		s.lead(t, 20*time.Minute) // a second leader with the same directory: no second snapshot
		if got, want := s.names(t), []string{"20000101T010000Z.snap"}; !slices.Equal(got, want) {
			t.Errorf("files = %q, want %q", got, want)
		}
		f, err := os.Open(filepath.Join(s.dir, "dc1-scheduled-20000101T010000Z.snap"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if m, totals, err := raftstore.ReadArchive(f); err != nil || m.Index != 7 || m.Stale || totals.Resources != 1 {
			t.Errorf("ReadArchive() = %+v, %+v, %v, want one resource at index 7", m, totals, err)
		}
		if st := s.Status(); !st.Enabled || st.Err != nil || time.Since(st.Last) != 50*time.Minute {
			t.Errorf("Status() = %+v, want a snapshot 50 minutes ago", st)
		}
	})
}

func TestSchedule_KeepsForeignFiles(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newScheduleTest(t)
		s.lead(t, time.Hour+time.Minute)
		foreign := []string{"dc1-scheduled-19990101T000000Z.snap.old", "dc1.snap", "dc2-scheduled-19990101T000000Z.snap"}
		for _, name := range foreign {
			if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.lead(t, 5*time.Hour)
		want := []string{"19990101T000000Z.snap.old", "20000101T040000Z.snap", "20000101T050000Z.snap",
			"20000101T060000Z.snap", "dc1.snap", "dc2-scheduled-19990101T000000Z.snap"}
		if got := s.names(t); !slices.Equal(got, want) {
			t.Errorf("files = %q, want %q", got, want)
		}
	})
}

func TestSchedule_Failure(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s := newScheduleTest(t)
		s.fails = time.Now().Add(2*time.Hour + 90*time.Second)
		s.lead(t, time.Hour+time.Second)
		if st := s.Status(); st.Err == nil || !st.Last.IsZero() || len(s.names(t)) > 0 {
			t.Errorf("Status() = %+v with files %q, want an error and no file", st, s.names(t))
		}
		s.lead(t, time.Hour+3*time.Minute)
		if st := s.Status(); st.Err != nil || len(s.names(t)) != 1 {
			t.Errorf("Status() after a retry = %+v with files %q, want one file", st, s.names(t))
		}
	})
}
