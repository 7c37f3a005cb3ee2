// SPDX-License-Identifier: MPL-2.0

package ctsapi

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// taskJSON is a task of CTS.
type taskJSON struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Enabled     *bool             `json:"enabled"`
	Module      string            `json:"module"`
	Version     string            `json:"version"`
	Providers   []string          `json:"providers"`
	Variables   map[string]string `json:"variables"`
	Buffer      *bufferJSON       `json:"buffer_period,omitempty"`
	Condition   *queriesJSON      `json:"condition"`
	Inputs      *queriesJSON      `json:"module_input"`
}

// bufferJSON is a buffer period. Its durations have the format of Go.
type bufferJSON struct {
	Enabled *bool   `json:"enabled"`
	Max     *string `json:"max"`
	Min     *string `json:"min"`
}

// queriesJSON has conditions or inputs.
type queriesJSON struct {
	Services        *servicesJSON        `json:"services,omitempty"`
	CatalogServices *catalogServicesJSON `json:"catalog_services,omitempty"`
	KV              *kvJSON              `json:"consul_kv,omitempty"`
	Schedule        *scheduleJSON        `json:"schedule,omitempty"`
}

type servicesJSON struct {
	Names            []string          `json:"names,omitempty"`
	Regexp           *string           `json:"regexp,omitempty"`
	Datacenter       string            `json:"datacenter"`
	Namespace        string            `json:"namespace"`
	Filter           string            `json:"filter"`
	UserMeta         map[string]string `json:"cts_user_defined_meta"`
	UseAsModuleInput *bool             `json:"use_as_module_input,omitempty"`
}

type catalogServicesJSON struct {
	Regexp           *string           `json:"regexp"`
	Datacenter       string            `json:"datacenter"`
	Namespace        string            `json:"namespace"`
	NodeMeta         map[string]string `json:"node_meta"`
	UseAsModuleInput *bool             `json:"use_as_module_input,omitempty"`
}

type kvJSON struct {
	Path             string `json:"path"`
	Recurse          bool   `json:"recurse"`
	Datacenter       string `json:"datacenter"`
	Namespace        string `json:"namespace"`
	UseAsModuleInput *bool  `json:"use_as_module_input,omitempty"`
}

type scheduleJSON struct {
	Cron string `json:"cron"`
}

// encode returns the JSON of a task.
func encode(t Task) *taskJSON {
	tf := t.Task.GetTerraform()
	out := &taskJSON{
		Name: t.Name, Description: t.Task.Description, Enabled: t.Task.Enabled, Module: tf.GetModule(), Version: tf.GetVersion(),
		Providers: append([]string{}, tf.GetProviders()...), Variables: orEmpty(t.Task.Variables),
		Condition: encodeQueries(t.Task.Conditions, true), Inputs: encodeQueries(t.Task.Inputs, false),
	}
	if b := t.Task.Buffer; b != nil || out.Condition.Schedule != nil {
		on := b != nil && !b.Disabled
		low, high := b.GetMin().AsDuration().String(), b.GetMax().AsDuration().String()
		out.Buffer = &bufferJSON{Enabled: &on, Min: &low, Max: &high}
	}
	return out
}

// encodeQueries returns the JSON of the queries of CTS's kinds. Of several
// queries of one kind it returns the first.
func encodeQueries(queries []*pb.TaskQuery, conditions bool) *queriesJSON {
	out := &queriesJSON{}
	for _, q := range slices.Backward(queries) {
		var use *bool
		if conditions {
			use = new(!q.TriggerOnly)
		}
		switch q.Kind {
		case task.KindServices:
			out.Services = &servicesJSON{q.Names, q.Regexp, q.Datacenter, q.Namespace, q.Filter, orEmpty(q.UserMeta), use}
		case task.KindCatalogServices:
			out.CatalogServices = &catalogServicesJSON{q.Regexp, q.Datacenter, q.Namespace, orEmpty(q.NodeMeta), use}
		case task.KindKV:
			out.KV = &kvJSON{q.Path, q.Recurse, q.Datacenter, q.Namespace, use}
		case task.KindSchedule:
			out.Schedule = &scheduleJSON{q.Cron}
		}
	}
	return out
}

// decode returns a task with defaults that package task has checked.
func (j *taskJSON) decode() (Task, error) {
	if j.Name == "" {
		return Task{}, errors.New("task.name: the name of the task is required")
	}
	if err := task.CheckName(j.Name); err != nil {
		return Task{}, fmt.Errorf("task.name: %w", err)
	}
	t := &pb.Task{Description: j.Description, Enabled: j.Enabled, Variables: j.Variables,
		Terraform:  &pb.TerraformDriver{Module: j.Module, Version: j.Version, Providers: j.Providers},
		Conditions: j.Condition.decode(), Inputs: j.Inputs.decode()}
	var err error
	if t.Buffer, err = j.Buffer.decode(); err != nil {
		return Task{}, err
	}
	task.SetDefaults(t)
	return Task{j.Name, t}, task.Check(t)
}

func (j *queriesJSON) decode() (queries []*pb.TaskQuery) {
	if j == nil {
		return nil
	}
	triggerOnly := func(use *bool) bool { return use != nil && !*use }
	if s := j.Services; s != nil {
		queries = append(queries, &pb.TaskQuery{Kind: task.KindServices, Names: s.Names, Regexp: s.Regexp, Filter: s.Filter,
			Datacenter: s.Datacenter, Namespace: s.Namespace, UserMeta: s.UserMeta, TriggerOnly: triggerOnly(s.UseAsModuleInput)})
	}
	if s := j.CatalogServices; s != nil {
		queries = append(queries, &pb.TaskQuery{Kind: task.KindCatalogServices, Regexp: s.Regexp, Datacenter: s.Datacenter,
			Namespace: s.Namespace, NodeMeta: s.NodeMeta, TriggerOnly: triggerOnly(s.UseAsModuleInput)})
	}
	if s := j.KV; s != nil {
		queries = append(queries, &pb.TaskQuery{Kind: task.KindKV, Path: s.Path, Recurse: s.Recurse, Datacenter: s.Datacenter,
			Namespace: s.Namespace, TriggerOnly: triggerOnly(s.UseAsModuleInput)})
	}
	if s := j.Schedule; s != nil {
		queries = append(queries, &pb.TaskQuery{Kind: task.KindSchedule, Cron: s.Cron})
	}
	return queries
}

func (j *bufferJSON) decode() (*pb.TaskBuffer, error) {
	if j == nil {
		return nil, nil
	}
	b := &pb.TaskBuffer{Disabled: j.Enabled != nil && !*j.Enabled}
	for _, f := range []struct {
		name string
		text *string
		to   **durationpb.Duration
	}{{"min", j.Min, &b.Min}, {"max", j.Max, &b.Max}} {
		if f.text == nil {
			continue
		}
		d, err := time.ParseDuration(*f.text)
		if err != nil {
			return nil, fmt.Errorf("task.buffer_period.%s: %q: must be a duration with a unit, such as 5s", f.name, *f.text)
		}
		*f.to = durationpb.New(d)
	}
	return b, nil
}

// fieldName returns the name in the JSON of a field in an error about t.
func fieldName(t *pb.Task, field string) string {
	parts := []string{"task"}
	for part := range strings.SplitSeq(strings.TrimPrefix(field, "terraform."), ".") {
		name, index, _ := strings.Cut(part, "[")
		queries := map[string][]*pb.TaskQuery{"conditions": t.GetConditions(), "inputs": t.GetInputs()}[name]
		if inJSON, ok := jsonNames[name]; ok {
			part = inJSON
		}
		parts = append(parts, part)
		if i, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err == nil && i < len(queries) {
			parts = append(parts, strings.ReplaceAll(queries[i].Kind, "-", "_"))
		}
	}
	return strings.Join(parts, ".")
}

// jsonNames has the names in the JSON of fields of a task that differ.
var jsonNames = map[string]string{"conditions": "condition", "inputs": "module_input", "buffer": "buffer_period",
	"user_meta": "cts_user_defined_meta", "trigger_only": "use_as_module_input"}

// orEmpty returns m, or an empty map for nil. JSON encodes nil as null.
func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}
