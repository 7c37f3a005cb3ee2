// SPDX-License-Identifier: MPL-2.0

package ctsapi

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/terraform"
	"github.com/wanfed/wanfed/resource"
)

// memory is an implementation of Tasks whose runs succeed at once.
type memory struct {
	mu      sync.Mutex
	tasks   map[string]*pb.Task
	runs    map[string][]TaskRun // newest first
	cluster *Cluster
	err     error // of all methods
}

func (m *memory) List(context.Context) (all []Task, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.tasks)) {
		all = append(all, Task{name, m.tasks[name]})
	}
	return all, m.err
}

func (m *memory) Get(_ context.Context, name string) (Task, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.tasks[name]
	if !ok {
		return Task{}, resource.ErrNotFound
	}
	return Task{name, proto.CloneOf(t)}, m.err
}

func (m *memory) Create(_ context.Context, t Task, run Run) (*Plan, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tasks[t.Name] != nil {
		return nil, resource.ErrConflict
	}
	if err := terraform.CheckModule(t.Name, t.Task); err != nil {
		return nil, err
	}
	if run == Inspect {
		return &Plan{true, "1 to add"}, m.err
	}
	m.tasks[t.Name] = t.Task
	if run == Now {
		m.run(t.Name, task.Succeeded)
	}
	return nil, m.err
}

func (m *memory) SetEnabled(_ context.Context, name string, enabled bool, run Run) (*Plan, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.tasks[name] == nil:
		return nil, resource.ErrNotFound
	case run == Inspect:
		return &Plan{true, "1 to add"}, m.err
	}
	m.tasks[name].Enabled = &enabled
	return nil, m.err
}

func (m *memory) Delete(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tasks[name] == nil {
		return resource.ErrNotFound
	}
	delete(m.tasks, name)
	return m.err
}

func (m *memory) Runs(_ context.Context, name string) ([]TaskRun, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[name], m.err
}

func (m *memory) Cluster(context.Context) (*Cluster, error) { return m.cluster, m.err }

// run adds a run with the result. The caller holds mu, or is alone.
func (m *memory) run(name, result string) {
	start := time.Date(2026, 1, 1, 0, 0, len(m.runs[name]), 0, time.UTC)
	r := &pb.TaskRun{Task: name, Mode: "apply", Result: result, StartedAt: timestamppb.New(start)}
	if result != task.Running {
		r.EndedAt = timestamppb.New(start.Add(time.Second))
	}
	m.runs[name] = append([]TaskRun{{"id", r}}, m.runs[name]...)
}

// newMemory returns the tasks of the samples: "one" ran, and "off" is disabled.
func newMemory() *memory {
	m := &memory{tasks: make(map[string]*pb.Task), runs: make(map[string][]TaskRun)}
	for name, t := range map[string]*pb.Task{
		"one": {Description: "the first"},
		"off": {Enabled: new(false), Buffer: &pb.TaskBuffer{Min: durationpb.New(time.Second)}},
	} {
		t.Origin = task.OriginFile
		t.Terraform = &pb.TerraformDriver{Module: "./mod"}
		t.Conditions = []*pb.TaskQuery{{Kind: task.KindServices, Names: []string{"api"}}}
		task.SetDefaults(t)
		m.tasks[name] = t
	}
	m.run("one", task.Succeeded)
	return m
}

// serve returns the URL of a server of the API.
func serve(t *testing.T, tasks Tasks) string {
	t.Helper()
	srv := httptest.NewServer(New(tasks, nil))
	t.Cleanup(srv.Close)
	return srv.URL
}

// do sends a request, and returns the response with its body.
func do(t *testing.T, method, url, contentType, body string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	return send(t, r)
}

func send(t *testing.T, r *http.Request) (*http.Response, []byte) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the response to %s %s: %v", r.Method, r.URL, err)
	}
	return resp, out
}

// keys adds the paths of all keys of a JSON value to paths.
func keys(v any, prefix string, paths map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			path := strings.TrimPrefix(prefix+"."+name, ".")
			paths[path] = true
			keys(member, path, paths)
		}
	case []any:
		for _, element := range v {
			keys(element, prefix+"[]", paths)
		}
	}
}

// keysOf returns the sorted paths of all keys of a JSON text. It returns an
// empty list for other text.
func keysOf(text []byte) []string {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return []string{}
	}
	paths := make(map[string]bool)
	keys(v, "", paths)
	return append([]string{}, slices.Sorted(maps.Keys(paths))...)
}
