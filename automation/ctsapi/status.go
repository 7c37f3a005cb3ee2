// SPDX-License-Identifier: MPL-2.0

package ctsapi

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// The statuses of a task.
const (
	successful = "successful" // the newest run succeeded
	errored    = "errored"    // the newest run failed, and no other of the newest MaxEvents
	critical   = "critical"   // the newest run failed, and another one too
	unknown    = "unknown"    // no run has ended
)

var statuses = []string{successful, errored, critical, unknown}

// statusJSON is the status of a task.
type statusJSON struct {
	TaskName  string      `json:"task_name"`
	Status    string      `json:"status"`
	Enabled   bool        `json:"enabled"`
	EventsURL string      `json:"events_url"`
	Events    []eventJSON `json:"events,omitempty"`
	Providers []string    `json:"providers"`
	Services  []string    `json:"services"`
}

// eventJSON is a run that ended.
type eventJSON struct {
	ID        string          `json:"id"`
	Success   bool            `json:"success"`
	StartTime time.Time       `json:"start_time"`
	EndTime   time.Time       `json:"end_time"`
	TaskName  string          `json:"task_name"`
	Error     *eventErrorJSON `json:"error"`
	Config    eventConfigJSON `json:"config"`
}

type eventErrorJSON struct {
	Message string `json:"message"`
}

type eventConfigJSON struct {
	Providers []string `json:"providers"`
	Services  []string `json:"services"`
	Source    string   `json:"source"`
}

// statusOf returns the status of a task, with its events.
func (h *handler) statusOf(ctx context.Context, t Task) (*statusJSON, error) {
	runs, err := h.tasks.Runs(ctx, t.Name)
	if err != nil {
		return nil, statusFailure(err, t.Name)
	}
	tf := t.Task.GetTerraform()
	providers := append([]string{}, tf.GetProviders()...)
	s := &statusJSON{TaskName: t.Name, Enabled: t.Task.GetEnabled(), Status: unknown, Providers: providers, Services: []string{}}
	failed := 0
	for _, r := range runs {
		if r.Run.EndedAt == nil || r.Run.Mode == "plan" || len(s.Events) == MaxEvents {
			continue
		}
		e := eventJSON{ID: r.ID, Success: r.Run.Result == task.Succeeded, StartTime: r.Run.StartedAt.AsTime(),
			EndTime: r.Run.EndedAt.AsTime(), TaskName: t.Name,
			Config: eventConfigJSON{Providers: providers, Services: []string{}, Source: tf.GetModule()}}
		if !e.Success {
			failed++
			e.Error = &eventErrorJSON{messageOf(r.Run)}
		}
		s.Events = append(s.Events, e)
	}
	switch {
	case len(s.Events) == 0:
		return s, nil
	case s.Events[0].Success:
		s.Status = successful
	case failed == 1:
		s.Status = errored
	default:
		s.Status = critical
	}
	s.EventsURL = "/v1/status/tasks/" + url.PathEscape(t.Name) + "?include=events"
	return s, nil
}

// messageOf returns why a run did not succeed.
func messageOf(r *pb.TaskRun) string {
	if r.Error != "" {
		return r.Error
	}
	return "the run is " + r.Result
}

func (h *handler) status(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	all, err := h.tasks.List(r.Context())
	if err != nil {
		return 0, nil, statusFailure(err, "")
	}
	var out struct {
		Summary struct {
			Status struct {
				Successful int `json:"successful"`
				Errored    int `json:"errored"`
				Critical   int `json:"critical"`
				Unknown    int `json:"unknown"`
			} `json:"status"`
			Enabled struct {
				True  int `json:"true"`
				False int `json:"false"`
			} `json:"enabled"`
		} `json:"task_summary"`
	}
	count := map[string]*int{successful: &out.Summary.Status.Successful, errored: &out.Summary.Status.Errored,
		critical: &out.Summary.Status.Critical, unknown: &out.Summary.Status.Unknown}
	for _, t := range all {
		s, err := h.statusOf(r.Context(), t)
		if err != nil {
			return 0, nil, err
		}
		*count[s.Status]++
		if s.Enabled {
			out.Summary.Enabled.True++
		} else {
			out.Summary.Enabled.False++
		}
	}
	return http.StatusOK, out, nil
}

// taskStatus returns the status of one task, or of all.
func (h *handler) taskStatus(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	query := r.URL.Query()
	filter, include := query.Get("status"), query.Get("include")
	if filter != "" && !slices.Contains(statuses, filter) {
		return 0, nil, badRequest(false, "parameter status %.100q: must be one of %s", filter, strings.Join(statuses, ", "))
	}
	if include != "" && include != "events" {
		return 0, nil, badRequest(false, "parameter include %.100q: must be events", include)
	}
	name := r.PathValue("name")
	all, err := h.selected(r.Context(), name)
	if err != nil {
		return 0, nil, statusFailure(err, name)
	}
	out := make(map[string]*statusJSON)
	for _, t := range all {
		s, err := h.statusOf(r.Context(), t)
		if err != nil {
			return 0, nil, err
		}
		if include == "" {
			s.Events = nil
		}
		if filter == "" || filter == s.Status {
			out[t.Name] = s
		}
	}
	return http.StatusOK, out, nil
}

// selected returns the task of that name, or all tasks for an empty name.
func (h *handler) selected(ctx context.Context, name string) ([]Task, error) {
	if name == "" {
		return h.tasks.List(ctx)
	}
	t, err := h.tasks.Get(ctx, name)
	return []Task{t}, err
}

// statusFailure returns the error of a request for a status. CTS sends it
// without the id of the request.
func statusFailure(err error, name string) *apiError {
	e := failure(err, name, nil)
	e.identified = false
	return e
}

func (h *handler) cluster(_ http.ResponseWriter, r *http.Request) (int, any, error) {
	c, err := h.tasks.Cluster(r.Context())
	if err != nil {
		return 0, nil, failure(err, "", nil)
	}
	if c == nil {
		return 0, nil, &apiError{http.StatusMethodNotAllowed,
			"the daemon has no cluster: name one in the block high_availability of its configuration", true}
	}
	return http.StatusOK, struct {
		*Cluster
		RequestID string `json:"request_id"`
	}{c, requestID()}, nil
}
