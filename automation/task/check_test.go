// SPDX-License-Identifier: MPL-2.0

package task

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
)

// decode returns the task of a JSON text, with defaults.
func decode(t *testing.T, text string) *pb.Task {
	t.Helper()
	var out pb.Task
	if err := protojson.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("Unmarshal(%s) = %v, want nil", text, err)
	}
	SetDefaults(&out)
	return &out
}

func TestCheck_Valid(t *testing.T) {
	for _, text := range []string{
		`{"terraform":{"module":"./m"},"conditions":[{"kind":"services","names":["web"]}]}`,
		`{"terraform":{"module":"./m","providers":["local","aws.east"]},"conditions":[{"kind":"services","regexp":""}]}`,
		`{"driver":"exec","exec":{"command":["true"]},"conditions":[{"kind":"consul-kv","path":"a"},
			{"kind":"datacenter","datacenter":"dc2","state":"unreachable","for":"30s","on":["changed"]}]}`,
		`{"terraform":{"module":"./m"},"conditions":[{"kind":"schedule","cron":"*/5 * * * * * *"}],
			"inputs":[{"kind":"services","names":["web"]}],"guard":{"max_destroy":"20%"},
			"variables":{"tags":"[\"a\", {b = 1}]"}}`,
		`{"origin":"file","terraform":{"module":"./m"}}`,
		`{"driver":"exec","origin":"file","exec":{"command":["true"],"plan":["true"]},"guard":{"approve":true}}`,
		`{"terraform":{"module":"m"},"conditions":[{"kind":"services","names":["a"]},
			{"kind":"services","names":["a"],"datacenter":"dc2"}]}`,
	} {
		if err := Check(decode(t, text)); err != nil {
			t.Errorf("Check(%s) = %v, want nil", text, err)
		}
	}
}

func TestCheck_Invalid(t *testing.T) {
	const web = `"conditions":[{"kind":"services","names":["web"]}]`
	for _, test := range []struct{ text, field string }{
		{`{` + web + `}`, "terraform.module"},
		{`{"driver":"exec",` + web + `}`, "exec.command"},
		{`{"driver":"shell",` + web + `}`, "driver"},
		{`{"terraform":{"module":"m"}}`, "conditions"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"schedule","cron":"* * * * *"}]}`, "inputs"},
		{`{"driver":"exec","exec":{"command":["true"]},"guard":{"approve":true},` + web + `}`, "exec.plan"},
		{`{"driver":"exec","exec":{"command":["true"],"plan":["true"]},"guard":{"max_destroy":"1"},` + web + `}`, "guard.max_destroy"},
		{`{"terraform":{"module":"m"},"exec":{"command":["true"]},` + web + `}`, "exec"},
		{`{"terraform":{"module":"m","providers":["a.x","a.y"]},` + web + `}`, "terraform.providers[1]"},
		{`{"terraform":{"module":"m"},"timeout":"-1s",` + web + `}`, "timeout"},
		{`{"terraform":{"module":"m"},"guard":{"max_destroy":"120%"},` + web + `}`, "guard.max_destroy"},
		{`{"terraform":{"module":"m"},"variables":{"x":"var.y"},` + web + `}`, `variables["x"]`},
		{`{"terraform":{"module":"m"},"variables":{"x":"}"},` + web + `}`, `variables["x"]`},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"services"}]}`, "conditions[0]"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"services","names":["a"],"regexp":"b"}]}`, "conditions[0]"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"services","regexp":"("}]}`, "conditions[0].regexp"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"services","names":["a"],"filter":"=="}]}`, "conditions[0].filter"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"services","names":["a"],"cron":"x"}]}`, "conditions[0].cron"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"schedule","cron":"61 * * * *"}],
			"inputs":[{"kind":"nodes"}]}`, "conditions[0].cron"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"consul-kv","path":"a"},{"kind":"consul-kv","path":"b"}]}`,
			"conditions[1]"},
		{`{"terraform":{"module":"m"},` + web + `,"inputs":[{"kind":"services","names":["b"]}]}`, "inputs[0]"},
		{`{"terraform":{"module":"m"},` + web + `,"inputs":[{"kind":"catalog-services","regexp":"a"}]}`, "inputs[0]"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"weather"}]}`, "conditions[0].kind"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"services","names":["a"],"on":["moved"]}]}`, "conditions[0].on"},
		{`{"terraform":{"module":"m"},"conditions":[{"kind":"resource","type":"a/b"}]}`, "conditions[0].type"},
	} {
		err := Check(decode(t, test.text))
		if f, ok := errors.AsType[*FieldError](err); !ok || f.Field != test.field {
			t.Errorf("Check(%s) = %v, want an error of field %s", test.text, err, test.field)
		}
	}
}

func TestSetDefaults_BufferMax(t *testing.T) {
	for _, test := range []struct{ low, high, want time.Duration }{
		{5 * time.Second, 0, 20 * time.Second}, {5 * time.Second, time.Second, 5 * time.Second},
		{5 * time.Second, 7 * time.Second, 7 * time.Second},
	} {
		b := &pb.TaskBuffer{Min: durationpb.New(test.low)}
		if test.high != 0 {
			b.Max = durationpb.New(test.high)
		}
		SetDefaults(&pb.Task{Buffer: b})
		if got := b.Max.AsDuration(); got != test.want {
			t.Errorf("maximum of a buffer with %v and %v = %v, want %v", test.low, test.high, got, test.want)
		}
	}
}

func TestCheckName_Rules(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "_A-9": true, strings.Repeat("a", 128): true,
		"": false, "9a": false, "a.b": false, "a b": false, "é": false, strings.Repeat("a", 129): false,
	} {
		if err := CheckName(name); (err == nil) != want {
			t.Errorf("CheckName(%q) = %v, want valid: %v", name, err, want)
		}
	}
}

func TestLeaseName_Case(t *testing.T) {
	if a, b := LeaseName("Web"), LeaseName("web"); a == b {
		t.Errorf("LeaseName(Web) = LeaseName(web) = %q, want different names", a)
	}
}

func TestMaxDestroy(t *testing.T) {
	for limit, want := range map[string]int{"": 40, "3": 3, "20%": 8, "0": 0, "0%": 0} {
		if n, err := MaxDestroy(limit, 40); n != want || err != nil {
			t.Errorf("MaxDestroy(%q, 40) = %v, %v, want %v, nil", limit, n, err, want)
		}
	}
}
