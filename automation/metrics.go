// SPDX-License-Identifier: MPL-2.0

package automation

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/api/pb"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_sync_"+name, help, labels, nil)
}

var (
	tasksDesc   = desc("tasks", "tasks that this daemon has claimed")
	activeDesc  = desc("runs_active", "runs that execute or wait for a slot")
	runsDesc    = desc("runs_total", "runs that ended", "mode", "result")
	secondsDesc = desc("run_seconds_total", "duration of the runs that ended", "mode")
	viewsDesc   = desc("views", "open views by the state of their data: current, old or absent", "state")
	ageDesc     = desc("data_age_seconds", "longest time for which the data of a view has not been current; 0: all current")
	queueDesc   = desc("queue_seconds_total", "time that runs waited for a slot")
)

// metrics counts runs. The zero value is ready for use.
type metrics struct {
	mu      sync.Mutex
	runs    map[[2]string]int // by mode and result
	seconds map[string]float64
	queue   time.Duration
}

func (m *metrics) started(waited time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue += waited
}

func (m *metrics) ended(r *pb.TaskRun) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs == nil {
		m.runs, m.seconds = map[[2]string]int{}, map[string]float64{}
	}
	m.runs[[2]string{r.Mode, r.Result}]++
	m.seconds[r.Mode] += r.EndedAt.AsTime().Sub(r.StartedAt.AsTime()).Seconds()
}

// Describe implements prometheus.Collector. It sends no descriptions, because
// those of the controller are not known in advance.
func (d *Daemon) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (d *Daemon) Collect(ch chan<- prometheus.Metric) {
	d.runtime.Collect(ch)
	m := &d.metrics
	m.mu.Lock()
	for key, n := range m.runs {
		ch <- prometheus.MustNewConstMetric(runsDesc, prometheus.CounterValue, float64(n), key[0], key[1])
	}
	for mode, s := range m.seconds {
		ch <- prometheus.MustNewConstMetric(secondsDesc, prometheus.CounterValue, s, mode)
	}
	ch <- prometheus.MustNewConstMetric(queueDesc, prometheus.CounterValue, m.queue.Seconds())
	m.mu.Unlock()

	health := d.cfg.Views.Health(time.Now())
	for state, n := range map[string]int{"current": health.Current, "old": health.Old, "absent": health.Absent} {
		ch <- prometheus.MustNewConstMetric(viewsDesc, prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, health.Age.Seconds())

	d.mu.Lock()
	defer d.mu.Unlock()
	claimed, active := 0, 0
	for _, w := range d.works {
		if w.isActive() {
			active++
		}
		if w.hasViews() {
			claimed++
		}
	}
	ch <- prometheus.MustNewConstMetric(tasksDesc, prometheus.GaugeValue, float64(claimed))
	ch <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(active))
}
