// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/automation/view"
)

// cutSource is a source that a test cuts off.
type cutSource struct {
	source
	cut *atomic.Pointer[context.CancelFunc] // ends the streams; nil: the source does not respond
}

func (s cutSource) Watch(ctx context.Context, st view.Stream) iter.Seq2[api.ResourceEvent, error] {
	return func(yield func(api.ResourceEvent, error) bool) {
		if s.cut.Load() == nil {
			yield(api.ResourceEvent{}, errors.New("no route to host"))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		s.cut.Store(&cancel)
		for ev, err := range s.source.Watch(ctx, st) {
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// A task reports data that is older than oldAfter, with its time, and that it
// is current again. Views.Health has the age.
func TestDaemon_ReportsOldData(t *testing.T) {
	inCluster(t, func(c *cluster) {
		var cut atomic.Pointer[context.CancelFunc]
		var views *view.Views
		up := func() { cut.Store(new(context.CancelFunc)) }
		c.setKey("app/a", "1")
		c.addTask("web", "app/")
		n := c.start("sync1", func(cfg *Config) {
			var err error
			views, err = view.New(cutSource{source{c.resource}, &cut}, view.Config{Datacenter: "dc1", Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			cfg.Views = views
		})
		defer n.stop()
		want := func(reason, message string, health view.Health) {
			t.Helper()
			time.Sleep(oldAfter + 2*ageInterval)
			synctest.Wait()
			if got := c.ready("web"); got.GetReason() != reason || !strings.Contains(got.GetMessage(), message) {
				t.Errorf("Ready = %s %q, want %s with %q", got.GetReason(), got.GetMessage(), reason, message)
			}
			got := views.Health(time.Now())
			if got.Age = 0; got != health {
				t.Errorf("Health() = %+v, want %+v", got, health)
			}
		}
		want("NoData", "no data of consul-kv yet: no route to host", view.Health{Absent: 1})
		up()
		want("Waiting", "", view.Health{Current: 1})
		at := time.Now()
		stop := cut.Swap(nil)
		(*stop)()
		want("OldData", "the data is that of "+at.UTC().Format(time.RFC3339)+", because a source does not respond", view.Health{Old: 1})
		if h := views.Health(time.Now()); h.Age != time.Since(at) {
			t.Errorf("age = %v, want %v", h.Age, time.Since(at))
		}
		generation := c.ready("web").String()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := c.ready("web").String(); got != generation {
			t.Errorf("Ready after 10 minutes = %s, want the same as before, %s", got, generation)
		}
		up()
		want("Waiting", "", view.Health{Current: 1})
		c.wantRuns("web", `{"app/a":"1"}`)
	})
}
