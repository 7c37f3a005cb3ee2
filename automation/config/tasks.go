// SPDX-License-Identifier: MPL-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/view"
)

// taskBlock is a task of a file.
type taskBlock struct {
	*block
	label string // name of the task
	task  *pb.Task
	// parts has the block of each part of the task. The key is the path of the
	// part in errors of package task, such as "conditions[0]".
	parts map[string]*block
	// services has the deprecated argument of that name.
	services      []string
	variableFiles []string
}

// service is a deprecated block service. Tasks name it by its id.
type service struct {
	id    string
	query *pb.TaskQuery
}

// service reads a block service.
func (l *loader) service(b *block) {
	b.warn(b.pos, "", `is deprecated: write its arguments into a condition "services" or module_input "services"`)
	s := service{query: &pb.TaskQuery{Kind: task.KindServices}}
	var name, description string
	b.string("name", &name)
	b.string("id", &s.id)
	b.string("datacenter", &s.query.Datacenter)
	b.string("namespace", &s.query.Namespace)
	b.string("filter", &s.query.Filter)
	b.string("description", &description)
	b.stringMap("cts_user_defined_meta", &s.query.UserMeta)
	if name == "" {
		b.fail(b.pos, "name", "the name of a service is required")
	}
	s.query.Names = []string{name}
	s.id = cmp.Or(s.id, name)
	l.services = append(l.services, s)
}

// terraformArguments has the arguments of a task that only the driver terraform
// has.
var terraformArguments = []string{"module", "version", "providers", "working_dir", "parallelism"}

// task reads a block task. finishTasks completes it when all files are read.
func (l *loader) task(b *block) {
	t := &taskBlock{block: b, task: &pb.Task{Origin: task.OriginFile}}
	t.parts = map[string]*block{"terraform": b}
	if b.string("name", &t.label); t.label != "" {
		b.name = fmt.Sprintf("task %q", t.label)
	}
	b.string("description", &t.task.Description)
	b.optional("enabled", &t.task.Enabled)
	b.string("group", &t.task.Group)
	b.string("driver", &t.task.Driver)
	b.string("on_delete", &t.task.OnDelete)
	b.durationProto("timeout", &t.task.Timeout)
	b.durationProto("grace", &t.task.Grace)
	b.durationProto("drift_check", &t.task.DriftCheck)
	b.refuse("terraform_version", noCloud)
	b.refuse("terraform_cloud_workspace", noCloud)

	b.rename("source", "module")
	b.rename("source_input", "module_input")
	t.readTerraform()
	t.readNested()
	t.strings("services", &t.services)
	if len(t.services) > 0 {
		t.warn(t.at("services"), "services", `is deprecated: use condition "services" or module_input "services"`)
	}
	l.cfg.tasks = append(l.cfg.tasks, t)
}

func (t *taskBlock) readTerraform() {
	var tf pb.TerraformDriver
	t.string("module", &tf.Module)
	t.string("version", &tf.Version)
	t.strings("providers", &tf.Providers)
	t.string("working_dir", &tf.WorkingDir)
	var parallelism int
	t.int("parallelism", &parallelism, math.MaxInt32)
	tf.Parallelism = uint32(parallelism)
	if !proto.Equal(&tf, &pb.TerraformDriver{}) {
		t.task.Terraform = &tf
	}
	t.strings("variable_files", &t.variableFiles)
}

func (t *taskBlock) readNested() {
	t.nested("buffer_period", func(b *block) {
		t.parts["buffer"] = b
		t.task.Buffer = &pb.TaskBuffer{}
		readBuffer(b, t.task.Buffer)
	})
	t.nested("guard", func(b *block) {
		t.parts["guard"] = b
		t.task.Guard = &pb.TaskGuard{}
		b.string("max_destroy", &t.task.Guard.MaxDestroy)
		b.bool("approve", &t.task.Guard.Approve)
		b.bool("empty_input", &t.task.Guard.EmptyInput)
	})
	t.nested("exec", func(b *block) {
		t.parts["exec"] = b
		t.task.Exec = &pb.ExecDriver{}
		b.strings("command", &t.task.Exec.Command)
		b.strings("plan", &t.task.Exec.Plan)
		b.strings("destroy", &t.task.Exec.Destroy)
		b.stringMap("env", &t.task.Exec.Env)
	})
	t.labeled("condition", func(kind string, b *block) { t.add("conditions", &t.task.Conditions, readQuery(kind, b), b) })
	t.labeled("module_input", func(kind string, b *block) { t.add("inputs", &t.task.Inputs, readQuery(kind, b), b) })
}

// add appends a query to conditions or inputs. b is its block in errors.
func (t *taskBlock) add(field string, to *[]*pb.TaskQuery, q *pb.TaskQuery, b *block) {
	t.parts[fmt.Sprintf("%s[%d]", field, len(*to))] = b
	*to = append(*to, q)
}

// readQuery reads a condition or an input. Package task has the rules of each
// kind.
func readQuery(kind string, b *block) *pb.TaskQuery {
	q := &pb.TaskQuery{Kind: kind}
	b.strings("names", &q.Names)
	b.optionalString("regexp", &q.Regexp)
	b.string("datacenter", &q.Datacenter)
	b.string("namespace", &q.Namespace)
	b.string("filter", &q.Filter)
	b.stringMap("node_meta", &q.NodeMeta)
	b.stringMap("cts_user_defined_meta", &q.UserMeta)
	b.string("path", &q.Path)
	b.bool("recurse", &q.Recurse)
	b.string("cron", &q.Cron)
	b.strings("on", &q.On)
	b.string("type", &q.Type)
	b.string("prefix", &q.Prefix)
	b.string("state", &q.State)
	b.durationProto("for", &q.For)
	b.rename("source_includes_var", "use_as_module_input")
	used := true
	b.bool("use_as_module_input", &used)
	q.TriggerOnly = !used
	return q
}

// finishTasks completes the tasks, and checks them.
func (l *loader) finishTasks() {
	names := make(map[string]pos)
	for _, t := range l.cfg.tasks {
		switch first, duplicate := names[t.label]; {
		case t.label == "":
			t.fail(t.pos, "name", "a unique name of the task is required")
			continue
		case duplicate:
			t.fail(t.pos, "name", "%s has a task of the same name", first)
			continue
		}
		names[t.label] = t.pos
		t.finish()
		l.cfg.Tasks = append(l.cfg.Tasks, Task{t.label, t.task, t.pos.String()})
	}
}

func (t *taskBlock) finish() {
	if err := task.CheckName(t.label); err != nil {
		t.fail(t.at("name"), "name", "%v", err)
		return
	}
	t.addServices()
	t.readVariables()
	t.task.Group = cmp.Or(t.task.Group, t.cfg.Group)
	if t.task.Buffer != nil {
		t.task.Buffer = bufferOf(t.task.Buffer, t.cfg.Buffer)
	}
	task.SetDefaults(t.task)
	for _, name := range terraformArguments {
		if t.task.Driver == task.DriverExec && len(t.all(name)) > 0 {
			t.fail(t.at(name), name, "only the driver terraform has this argument")
			return
		}
	}
	err := task.Check(t.task)
	if err == nil && t.cfg.Wanfed.FromConsul {
		err = checkConsul(t.task)
	}
	if f, ok := errors.AsType[*task.FieldError](err); ok {
		err = t.locate(f)
	}
	t.errs = appendError(t.errs, err)
	switch c := t.task.Conditions; {
	case len(c) == 0:
		t.warn(t.pos, "condition", "the task has no condition: it runs only at start and by request")
	case len(c) == 1 && c[0].Kind == task.KindSchedule && len(t.task.Inputs) == 0:
		t.warn(t.pos, "module_input", "the task has a schedule, but no input that could change")
	}
}

// checkConsul checks that Consul has the data of a task.
func checkConsul(t *pb.Task) error {
	for field, queries := range map[string][]*pb.TaskQuery{"conditions": t.Conditions, "inputs": t.Inputs} {
		for i, q := range queries {
			if err := view.CheckConsul(q.Kind); err != nil {
				return &task.FieldError{Field: fmt.Sprintf("%s[%d].kind", field, i), Reason: err.Error()}
			}
		}
	}
	return nil
}

// addServices adds what the deprecated argument services selects: conditions
// if the task has none, and inputs otherwise.
func (t *taskBlock) addServices() {
	if len(t.services) == 0 {
		return
	}
	var queries []*pb.TaskQuery
	plain := &pb.TaskQuery{Kind: task.KindServices}
	for _, id := range t.services {
		i := slices.IndexFunc(t.loader.services, func(s service) bool { return s.id == id })
		if i < 0 {
			plain.Names = append(plain.Names, id)
			continue
		}
		queries = append(queries, proto.CloneOf(t.loader.services[i].query))
	}
	if len(plain.Names) > 0 {
		queries = append(queries, plain)
	}
	field, to := "inputs", &t.task.Inputs
	if len(t.task.Conditions) == 0 {
		field, to = "conditions", &t.task.Conditions
	}
	for _, q := range queries {
		t.add(field, to, q, t.sub("services", t.at("services"), nil))
	}
}

// fileNames has the names in files of fields of a task that differ.
var fileNames = map[string]string{"user_meta": "cts_user_defined_meta", "trigger_only": "use_as_module_input",
	"variables": "variable_files", "kind": "", "conditions": "condition", "inputs": "module_input"}

// locate converts an error of package task to one with the position and the
// names of the file.
func (t *taskBlock) locate(f *task.FieldError) error {
	part, field := t.parts[f.Field], ""
	if part == nil {
		path, name := "", f.Field
		if i := strings.LastIndexByte(f.Field, '.'); i >= 0 {
			path, name = f.Field[:i], f.Field[i+1:]
		}
		if part = t.parts[path]; part == nil {
			part, name = t.block, f.Field
		}
		field, _, _ = strings.Cut(name, "[")
		if inFile, ok := fileNames[field]; ok {
			field = inFile
		}
	}
	p := part.at(field)
	return &Error{p.file, p.line, part.name, field, f.Reason}
}
