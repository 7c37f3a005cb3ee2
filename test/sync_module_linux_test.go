// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// moduleRig is a federation of two datacenters with a sync daemon in dc1, whose
// tasks have a module that was written for CTS.
type moduleRig struct {
	t       *testing.T
	l       *lab.Lab
	writers *documentWriters
	at      map[string]pb.ResourceServiceClient // by datacenter
	dir     string
	tasks   []moduleTask
	step    int // counts the triggers
}

// moduleTask is a task that creates a file for each instance of one service.
type moduleTask struct {
	kind, dc  string
	condition string
	// trigger changes the data of the condition, unless the service does.
	trigger func()
}

// name returns the name of the task and of its service.
func (m moduleTask) name() string { return m.kind + "-" + m.dc }

// TestSync_Module runs a module that was written for CTS, unchanged, with the
// provider hashicorp/local from a filesystem mirror. It creates, changes and
// removes a file for each instance, while instances register, move, fail and
// disappear in dc1 and, through two gateways, in dc2. WANFED_CHAOS=1 has a task for
// each kind of condition in both datacenters.
func TestSync_Module(t *testing.T) {
	terraform, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("terraform is not installed")
	}
	provider, err := exec.LookPath("terraform-provider-local")
	if err != nil {
		t.Skip("terraform-provider-local is not installed: see .ci/run")
	}
	t.Parallel()
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 2), l.Add(1, 2)
	for _, dc := range []*lab.Datacenter{dc1, dc2} {
		lab.One(dc).StartServer("--reads-from", "dc1")
		for _, g := range dc.Gateways[:int(longer(2, 1))] {
			g.StartGateway()
		}
	}
	testutil.Await(t, 30*time.Second, "federation", func(ctx context.Context) error {
		return federated(ctx, lab.One(dc1), 2, "dc1", "dc2")
	})
	r := &moduleRig{t: t, l: l, dir: t.TempDir(), writers: &documentWriters{t: t, l: l}}
	r.at = map[string]pb.ResourceServiceClient{"dc1": r.writers.operator(lab.One(dc1)), "dc2": r.writers.operator(lab.One(dc2))}
	r.writers.primary = []pb.ResourceServiceClient{r.at["dc1"]}
	r.addTasks("dc1")
	r.addTasks("dc2")
	var parts []string
	for _, m := range r.tasks {
		parts = append(parts, r.taskText(m))
		r.instance(m, "a", "10.0.0.1", "passing")
		r.instance(m, "b", "10.0.0.2", "passing")
	}
	sync := dc1.AddSync(lab.One(dc1))
	sync.Env = []string{"TF_CLI_CONFIG_FILE=" + r.mirror(terraform, provider), "CHECKPOINT_DISABLE=1"}
	sync.StartSync(parts...)

	r.await("registered", map[string]string{"a": "10.0.0.1:80", "b": "10.0.0.2:80"})
	r.each(func(m moduleTask) { r.instance(m, "a", "10.0.0.3", "passing") })
	r.await("moved", map[string]string{"a": "10.0.0.3:80", "b": "10.0.0.2:80"})
	r.each(func(m moduleTask) { r.instance(m, "b", "10.0.0.2", "critical") })
	r.await("failed", map[string]string{"a": "10.0.0.3:80"})
	r.each(func(m moduleTask) {
		_, err := r.at[m.dc].Delete(t.Context(), &pb.DeleteRequest{Id: resource.ID(catalog.NodeType, m.name()+"-a")})
		if err != nil {
			t.Fatal(resource.FromStatus(err))
		}
	})
	r.await("disappeared", map[string]string{})
	sync.Stop()
}

// addTasks adds the tasks whose conditions are about dc.
func (r *moduleRig) addTasks(dc string) {
	add := func(kind, condition string, trigger func()) {
		r.tasks = append(r.tasks, moduleTask{kind, dc, fmt.Sprintf("condition %s\n datacenter = %q\n}", condition, dc), trigger})
	}
	if dc == "dc1" || chaos() {
		add("names", fmt.Sprintf("\"services\" {\n names = [\"names-%s\"]", dc), nil)
	}
	if dc == "dc2" || chaos() {
		add("regexp", fmt.Sprintf("\"services\" {\n regexp = \"^regexp-%s$\"", dc), nil)
	}
	if !chaos() {
		return
	}
	key := func() { r.write(dc, kv.EntryType, "tick", nil, &pb.KVEntry{Value: fmt.Append(nil, r.step)}) }
	add("filter", fmt.Sprintf("\"services\" {\n names = [\"filter-%s\"]\n filter = \"Service.Port == 80\"", dc), nil)
	add("catalog-services", "\"catalog-services\" {\n regexp = \"^tick\"\n use_as_module_input = false", func() {
		name := fmt.Sprintf("tick%d", r.step)
		r.write(dc, catalog.NodeType, "tick", nil, &pb.Node{Node: "tick", Address: "10.0.0.9"})
		r.write(dc, catalog.ServiceType, "tick/"+name, resource.ID(catalog.NodeType, "tick"), &pb.Service{Node: "tick", Id: name, Service: name})
	})
	add("consul-kv", "\"consul-kv\" {\n path = \"tick\"\n use_as_module_input = false", key)
	r.tasks = append(r.tasks, moduleTask{"schedule", dc, "condition \"schedule\" {\n cron = \"*/3 * * * * * *\"\n}", nil})
	add("nodes", "\"nodes\" {\n regexp = \"^ticking$\"\n use_as_module_input = false", func() {
		r.write(dc, catalog.NodeType, "ticking", nil, &pb.Node{Node: "ticking", Address: fmt.Sprintf("10.0.1.%d", r.step)})
	})
	add("document", "\"document\" {\n names = [\"tick\"]\n use_as_module_input = false", func() {
		doc := r.writers.doc("tick", r.step)
		doc.Generation = ""
		if _, err := r.writers.write(r.at["dc1"], doc); err != nil {
			r.t.Fatal(err)
		}
	})
	add("resource", "\"resource\" {\n type = \"kv/v1/Entry\"\n names = [\"tick\"]\n use_as_module_input = false", key)
	add("federation", "\"federation\" {\n use_as_module_input = false", nil)
	add("gateway", "\"gateway\" {\n use_as_module_input = false", func() {
		dc := r.l.Datacenters()[dc[2]-'1']
		g := dc.Gateways[1]
		g.Kill()
		g.ReAddress(fmt.Sprintf("198.18.%c.%d", dc.Name[2], 100+r.step))
		g.StartGateway()
	})
}

// taskText returns the block of a task.
func (r *moduleRig) taskText(m moduleTask) string {
	input := ""
	if !strings.Contains(m.condition, `"services"`) {
		input = fmt.Sprintf("module_input \"services\" {\n names = [%q]\n datacenter = %q\n}", m.name(), m.dc)
	}
	dir := filepath.Join(r.dir, m.name())
	vars := dir + ".tfvars"
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(vars, fmt.Appendf(nil, "directory = %q\n", dir), 0o600)); err != nil {
		r.t.Fatal(err)
	}
	module, err := filepath.Abs("testdata/instance-files")
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprintf("task {\n name = %q\n module = %q\n variable_files = [%q]\n %s\n %s\n}", m.name(), module, vars, m.condition, input)
}

// providerAddress finds the provider of the module, with its default host.
var providerAddress = regexp.MustCompile(`provider\[(\S+)\]`)

// mirror creates a filesystem mirror with the provider, and returns the path of
// the configuration file of Terraform.
func (r *moduleRig) mirror(terraform, provider string) string {
	r.t.Helper()
	config := filepath.Join(r.dir, "terraformrc")
	if err := os.WriteFile(config, nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(terraform, "providers")
	cmd.Dir, cmd.Env = "testdata/instance-files", append(os.Environ(), "TF_CLI_CONFIG_FILE="+config, "CHECKPOINT_DISABLE=1")
	out, err := cmd.CombinedOutput()
	address := providerAddress.FindSubmatch(out)
	if err != nil || address == nil {
		r.t.Fatalf("terraform providers = %v: %s", err, out)
	}
	mirror := filepath.Join(r.dir, "mirror")
	dir := filepath.Join(mirror, string(address[1]), "2.9.0", runtime.GOOS+"_"+runtime.GOARCH) // any version that the module accepts
	text := fmt.Sprintf("provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", mirror)
	err = errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(provider, filepath.Join(dir, "terraform-provider-local_v2.9.0")),
		os.WriteFile(config, []byte(text), 0o600))
	if err != nil {
		r.t.Fatal(err)
	}
	return config
}

// write writes a resource of a datacenter.
func (r *moduleRig) write(dc string, typ *pb.Type, name string, owner *pb.ID, data proto.Message) {
	r.t.Helper()
	res := &pb.Resource{Id: resource.ID(typ, name), Owner: owner}
	var err error
	if res.Data, err = anypb.New(data); err == nil {
		_, err = r.writers.write(r.at[dc], res)
	}
	if err != nil {
		r.t.Fatalf("write %s %s in %s: %v", typ.Kind, name, dc, resource.FromStatus(err))
	}
}

// instance registers an instance of the service of a task on its own node.
func (r *moduleRig) instance(m moduleTask, id, address, status string) {
	r.t.Helper()
	node := m.name() + "-" + id
	owner := resource.ID(catalog.NodeType, node)
	r.write(m.dc, catalog.NodeType, node, nil, &pb.Node{Node: node, Address: "10.0.0.100"})
	service := resource.ID(catalog.ServiceType, node+"/"+id)
	r.write(m.dc, catalog.ServiceType, service.Name, owner, &pb.Service{Node: node, Id: id, Service: m.name(), Address: address, Port: 80})
	r.write(m.dc, catalog.CheckType, node+"/"+id, service, &pb.Check{Node: node, CheckId: id, ServiceId: id, Status: status})
}

func (r *moduleRig) each(f func(m moduleTask)) {
	r.t.Helper()
	for _, m := range r.tasks {
		f(m)
	}
}

// await triggers the tasks, and waits until each task has the files want. The
// trigger may arrive before the change of the service, so it is repeated.
func (r *moduleRig) await(what string, want map[string]string) {
	r.t.Helper()
	var triggered time.Time
	took := testutil.Await(r.t, longer(3*time.Minute, time.Minute), "files of instances that have "+what, func(context.Context) error {
		var errs []error
		for _, m := range r.tasks {
			if got := r.files(m); !maps.Equal(got, want) {
				errs = append(errs, fmt.Errorf("%s: files %v, want %v", m.name(), got, want))
			}
		}
		if len(errs) > 0 && time.Since(triggered) > 20*time.Second {
			r.step++
			for _, m := range r.tasks {
				if m.trigger != nil {
					m.trigger()
				}
			}
			triggered = time.Now()
		}
		return errors.Join(errs...)
	})
	r.t.Logf("%s: files of %d tasks are right after %v", what, len(r.tasks), ms(took))
}

// files returns the addresses in the files of a task, by the id of the instance.
func (r *moduleRig) files(m moduleTask) map[string]string {
	r.t.Helper()
	got := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(r.dir, m.name(), "*"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		address, dc, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
		if dc != m.dc || err != nil {
			address = fmt.Sprintf("%q, %v", b, err)
		}
		got[filepath.Base(path)] = address
	}
	return got
}
