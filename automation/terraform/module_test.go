// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

func TestCheckModule(t *testing.T) {
	writeFiles(t, map[string]string{
		"good/a.tf": `variable "services" {}`, "good/b.tf.json": `{"variable": {"nodes": {}}}`, "good/c.tofu": `variable "consul_kv" {}`,
		"empty/readme.md": ``, "broken/a.tf": `variable {`, "unlabeled/a.tf": `variable {}`,
	})
	nodes, kv := &pb.TaskQuery{Kind: task.KindNodes}, &pb.TaskQuery{Kind: task.KindKV}
	member := &pb.TaskQuery{Kind: task.KindMember}
	for _, test := range []struct {
		module     string
		conditions []*pb.TaskQuery
		want       string // "": no error
	}{
		{"./good", []*pb.TaskQuery{nodes, kv}, ""},
		{"./good", []*pb.TaskQuery{{Kind: task.KindMember, TriggerOnly: true}, {Kind: task.KindSchedule}}, ""},
		{"./good", []*pb.TaskQuery{member}, `module for task "t" is missing the "members" variable`},
		{"./empty", nil, "it is not a module"},
		{"./broken", nil, "broken/a.tf:1"},
		{"./unlabeled", nil, "unlabeled/a.tf:1"},
		{"../missing", nil, "no such file"},
		{"registry/module/aws", nil, ""},
		{"git::https://example.com/m.git", nil, ""},
	} {
		err := CheckModule("t", &pb.Task{Terraform: &pb.TerraformDriver{Module: test.module}, Conditions: test.conditions})
		f, ok := errors.AsType[*task.FieldError](err)
		if test.want == "" && err != nil || test.want != "" && (!ok || f.Field != "terraform.module" ||
			!strings.Contains(f.Reason, test.want)) {
			t.Errorf("CheckModule(%s, %v) = %v, want %q", test.module, test.conditions, err, test.want)
		}
	}
}

// writeFiles writes files into an empty working directory.
func writeFiles(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
