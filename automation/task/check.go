// SPDX-License-Identifier: MPL-2.0

package task

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/cronexpr"
	"github.com/hashicorp/go-bexpr/grammar"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
)

// SetDefaults sets the fields of t whose absence has a meaning. The maximum of a
// buffer defaults to four times its minimum, and is at least its minimum.
func SetDefaults(t *pb.Task) {
	if t.Enabled == nil {
		enabled := true
		t.Enabled = &enabled
	}
	setDefault(&t.Group, DefaultGroup)
	setDefault(&t.Driver, DriverTerraform)
	setDefault(&t.Origin, OriginAPI)
	if b := t.Buffer; b != nil && !b.Disabled && b.Min != nil {
		low := b.Min.AsDuration()
		if b.Max == nil {
			b.Max = durationpb.New(4 * low)
		} else if b.Max.AsDuration() < low {
			b.Max = b.Min
		}
	}
}

func setDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// FieldError names the invalid field of a task, relative to the task. Files and
// the HTTP API map the field to their own names.
type FieldError struct {
	// Field is a path such as "conditions[0].regexp".
	Field string
	// Reason has what is wrong and the rule.
	Reason string
}

func (e *FieldError) Error() string { return "data." + e.Field + ": " + e.Reason }

func fieldErrorf(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}

// Check returns a *FieldError for the first invalid field of t. t has the values
// of SetDefaults.
func Check(t *pb.Task) error {
	switch {
	case t.Driver != DriverTerraform && t.Driver != DriverExec:
		return fieldErrorf("driver", "%q: must be terraform or exec", t.Driver)
	case t.Driver == DriverTerraform && t.GetTerraform().GetModule() == "":
		return fieldErrorf("terraform.module", "module for the task is required")
	case t.Driver == DriverTerraform && t.Exec != nil:
		return fieldErrorf("exec", "the driver is terraform: remove exec, or set driver to exec")
	case t.Driver == DriverExec && len(t.GetExec().GetCommand()) == 0:
		return fieldErrorf("exec.command", "a command for the task is required")
	case t.Driver == DriverExec && t.Terraform != nil:
		return fieldErrorf("terraform", "the driver is exec: remove terraform, or set driver to terraform")
	case t.Driver == DriverExec && len(t.Variables) > 0:
		return fieldErrorf("variables", "only the driver terraform has variables")
	case t.Driver == DriverExec && t.Guard != nil && len(t.GetExec().GetPlan()) == 0:
		return fieldErrorf("exec.plan", "a guard needs a plan command, which reports with exit status 2 that there are changes")
	case t.Driver == DriverExec && t.GetGuard().GetMaxDestroy() != "":
		return fieldErrorf("guard.max_destroy", "the plan of a command does not report numbers: use approve or empty_input")
	case t.Origin != OriginFile && t.Origin != OriginAPI:
		return fieldErrorf("origin", "%q: must be file or api", t.Origin)
	case t.OnDelete != "" && t.OnDelete != Keep && t.OnDelete != Destroy:
		return fieldErrorf("on_delete", "%q: must be keep or destroy", t.OnDelete)
	case len(t.Group) > MaxNameLen || !isName(t.Group):
		return fieldErrorf("group", "%.140q: has the rules of a task name", t.Group)
	case len(t.Conditions)+len(t.Inputs) > MaxQueries:
		return fieldErrorf("conditions", "%d conditions and inputs: at most %d", len(t.Conditions)+len(t.Inputs), MaxQueries)
	}
	if err := errors.Join(checkDurations(t), checkGuard(t.Guard), checkProviders(t.GetTerraform().GetProviders())); err != nil {
		return err
	}
	for name, text := range t.Variables {
		if err := checkVariable(name, text); err != nil {
			return err
		}
	}
	return checkQueries(t)
}

// checkDurations checks the durations of t.
func checkDurations(t *pb.Task) error {
	for _, d := range []struct {
		field string
		value *durationpb.Duration
	}{
		{"timeout", t.Timeout}, {"grace", t.Grace}, {"drift_check", t.DriftCheck},
		{"buffer.min", t.Buffer.GetMin()}, {"buffer.max", t.Buffer.GetMax()},
	} {
		if v := d.value.AsDuration(); d.value != nil && (v < 0 || v > 365*24*time.Hour) {
			return fieldErrorf(d.field, "%v: must be 0 to 365 days", v)
		}
	}
	return nil
}

// MaxDestroy returns the most resources that a run may destroy, of total. It
// returns total for an empty limit.
func MaxDestroy(limit string, total int) (int, error) {
	if limit == "" {
		return total, nil
	}
	number, percent := strings.CutSuffix(limit, "%")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || percent && n > 100 {
		return 0, fmt.Errorf(`%q: must be a number, or a percentage such as "20%%"`, limit)
	}
	if percent {
		return total * n / 100, nil
	}
	return n, nil
}

func checkGuard(g *pb.TaskGuard) error {
	if _, err := MaxDestroy(g.GetMaxDestroy(), 1); err != nil {
		return fieldErrorf("guard.max_destroy", "%v", err)
	}
	return nil
}

func checkProviders(providers []string) error {
	used := make(map[string]string)
	for i, p := range providers {
		field := fmt.Sprintf("terraform.providers[%d]", i)
		name, alias, hasAlias := strings.Cut(p, ".")
		switch {
		case !isName(name) || hasAlias && !isName(alias):
			return fieldErrorf(field, "%q: must be NAME or NAME.ALIAS", p)
		case used[name] != "":
			return fieldErrorf(field, "only one provider instance per task: %q and %q", used[name], p)
		}
		used[name] = p
	}
	return nil
}

// checkVariable checks that text is an HCL expression without references.
func checkVariable(name, text string) error {
	field := fmt.Sprintf("variables[%q]", name)
	if !isName(name) {
		return fieldErrorf(field, "must be a name of a variable")
	}
	expr, diags := hclsyntax.ParseExpression([]byte(text), name, hcl.InitialPos)
	if !diags.HasErrors() {
		_, diags = expr.Value(nil)
	}
	if diags.HasErrors() {
		return fieldErrorf(field, "must be an HCL expression with literal values only: %s", diags[0].Detail)
	}
	return nil
}

// checkQueries checks conditions, inputs and the variables that they define. As
// in CTS, only a task of a file may have no condition: it runs at its start and
// by request.
func checkQueries(t *pb.Task) error {
	if len(t.Conditions) == 0 && t.Origin != OriginFile {
		return fieldErrorf("conditions", "a task needs a condition")
	}
	// Variables and the list that defines them. Several conditions, or several
	// inputs, may select services together, for example of several datacenters.
	defined := make(map[string]string)
	define := func(list, field string, q *pb.TaskQuery) error {
		v := Variable(q.Kind)
		if v == "" || q.TriggerOnly {
			return nil
		}
		if other := defined[v]; other != "" && (other != list || q.Kind != KindServices) {
			return fieldErrorf(field, "defines the variable %q, which another condition or input defines already", v)
		}
		defined[v] = list
		return nil
	}
	scheduled := false
	for i, q := range t.Conditions {
		field := fmt.Sprintf("conditions[%d]", i)
		scheduled = scheduled || q.Kind == KindSchedule
		if err := errors.Join(checkQuery(field, q), define("conditions", field, q)); err != nil {
			return err
		}
	}
	for i, q := range t.Inputs {
		field := fmt.Sprintf("inputs[%d]", i)
		if q.Kind == KindSchedule || q.Kind == KindCatalogServices || q.TriggerOnly || len(q.On) > 0 {
			return fieldErrorf(field, "%q, trigger_only and on are only for conditions", q.Kind)
		}
		if err := errors.Join(checkQuery(field, q), define("inputs", field, q)); err != nil {
			return err
		}
	}
	if scheduled && len(t.Inputs) == 0 && len(t.Conditions) == 1 && t.Origin != OriginFile {
		return fieldErrorf("inputs", "a task with a schedule needs an input")
	}
	return nil
}

// Kinds of queries.
const (
	KindServices        = "services"
	KindCatalogServices = "catalog-services"
	KindKV              = "consul-kv"
	KindSchedule        = "schedule"
	KindNodes           = "nodes"
	KindDocument        = "document"
	KindResource        = "resource"
	KindFederation      = "federation"
	KindGateway         = "gateway"
	KindMember          = "member"
	KindDatacenter      = "datacenter"
)

// kinds has the variable of each kind and the fields that a query of the kind
// may have, besides datacenter, trigger_only and on.
var kinds = map[string]struct {
	variable string
	fields   []string
}{
	KindServices:        {"services", []string{"names", "regexp", "namespace", "filter", "user_meta"}},
	KindCatalogServices: {"catalog_services", []string{"regexp", "namespace", "node_meta"}},
	KindKV:              {"consul_kv", []string{"path", "recurse", "namespace"}},
	KindSchedule:        {"", []string{"cron"}},
	KindNodes:           {"nodes", []string{"regexp", "filter", "node_meta"}},
	KindDocument:        {"documents", []string{"names", "prefix"}},
	KindResource:        {"resources", []string{"type", "names", "prefix"}},
	KindFederation:      {"federation", []string{"regexp"}},
	KindGateway:         {"gateways", []string{"regexp"}},
	KindMember:          {"members", []string{"regexp"}},
	KindDatacenter:      {"datacenters", []string{"state", "for", "regexp"}},
}

// Variable returns the variable that the data of a kind defines, or "" for a
// schedule and for an unknown kind.
func Variable(kind string) string { return kinds[kind].variable }

// fieldsOf returns the kind-specific fields of q that are set.
func fieldsOf(q *pb.TaskQuery) (set []string) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"names", len(q.Names) > 0}, {"regexp", q.Regexp != nil}, {"namespace", q.Namespace != ""},
		{"filter", q.Filter != ""}, {"node_meta", len(q.NodeMeta) > 0}, {"user_meta", len(q.UserMeta) > 0},
		{"path", q.Path != ""}, {"recurse", q.Recurse}, {"cron", q.Cron != ""}, {"type", q.Type != ""},
		{"prefix", q.Prefix != ""}, {"state", q.State != ""}, {"for", q.For != nil},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	return set
}

// checkQuery checks one condition or input.
func checkQuery(field string, q *pb.TaskQuery) error {
	kind, ok := kinds[q.Kind]
	if !ok {
		return fieldErrorf(field+".kind", "%q is not a kind of condition or input", q.Kind)
	}
	set := fieldsOf(q)
	for _, name := range set {
		if !slices.Contains(kind.fields, name) {
			return fieldErrorf(field+"."+name, "%s has no %s", q.Kind, name)
		}
	}
	has := func(name string) bool { return slices.Contains(set, name) }
	switch q.Kind {
	case KindServices:
		if has("names") == has("regexp") {
			return fieldErrorf(field, "either the regexp or names field must be configured, and not both")
		}
	case KindCatalogServices:
		if !has("regexp") {
			return fieldErrorf(field+".regexp", "catalog-services 'regexp' field must be set")
		}
	case KindKV:
		if !has("path") {
			return fieldErrorf(field+".path", "path is required for consul-kv condition")
		}
	case KindSchedule:
		if !has("cron") {
			return fieldErrorf(field+".cron", "cron config is required for schedule condition")
		}
		if _, err := cronexpr.Parse(q.Cron); err != nil {
			return fieldErrorf(field+".cron", "%q: %v", q.Cron, err)
		}
	case KindResource:
		if parts := strings.Split(q.Type, "/"); len(parts) != 3 || slices.Contains(parts, "") {
			return fieldErrorf(field+".type", "%q: must be GROUP/VERSION/KIND", q.Type)
		}
	case KindDatacenter:
		if q.State != "" && q.State != "unreachable" && q.State != "reachable" {
			return fieldErrorf(field+".state", "%q: must be unreachable or reachable", q.State)
		}
	}
	return checkValues(field, q)
}

// checkValues checks the values of the fields of q.
func checkValues(field string, q *pb.TaskQuery) error {
	for _, name := range q.Names {
		if name == "" {
			return fieldErrorf(field+".names", "must not contain an empty name")
		}
	}
	for _, change := range q.On {
		if change != "added" && change != "removed" && change != "changed" {
			return fieldErrorf(field+".on", "%q: must be added, removed or changed", change)
		}
	}
	if _, err := regexp.Compile(q.GetRegexp()); err != nil {
		return fieldErrorf(field+".regexp", "%v", err)
	}
	if q.Filter != "" {
		if _, err := grammar.Parse("", []byte(q.Filter)); err != nil {
			return fieldErrorf(field+".filter", "%q: %v", q.Filter, err)
		}
	}
	if q.For.AsDuration() < 0 {
		return fieldErrorf(field+".for", "%v: must not be negative", q.For.AsDuration())
	}
	return nil
}

func checkRun(r *pb.TaskRun) error {
	if len(r.Log) > MaxLog || len(r.Plan) > MaxLog {
		return fmt.Errorf("data.log or data.plan has more than %d bytes", MaxLog)
	}
	return nil
}

func checkState(s *pb.TaskState) error {
	if len(s.Versions) > MaxVersions {
		return fmt.Errorf("data.versions has %d elements: at most %d", len(s.Versions), MaxVersions)
	}
	return nil
}

func checkChunk(c *pb.TaskStateChunk) error {
	if n := len(c.Content); n == 0 || n > MaxChunk {
		return fmt.Errorf("data.content has %d bytes: must have 1 to %d", n, MaxChunk)
	}
	return nil
}
