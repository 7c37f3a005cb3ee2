// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// namespace is the namespace of all rendered objects.
const namespace = "wan"

// programs are the programs that the tests use.
type programs struct{ dir, wanfed, helm string }

var built struct {
	programs
	once sync.Once
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// tools returns the programs wanfed, of this source, and helm, of go.mod.
func tools(t testing.TB) programs {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "wanfed-chart-"); built.err != nil {
			return
		}
		built.wanfed = filepath.Join(built.dir, "wanfed")
		// Other users run the program.
		if built.err = os.Chmod(built.dir, 0o755); built.err != nil {
			return
		}
		cmd := exec.Command("make", "--no-print-directory", "build", "OUT="+built.wanfed)
		cmd.Dir = filepath.Join("..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("make build: %w\n%s", err, out)
			return
		}
		out, err := exec.Command("go", "tool", "-n", "helm").CombinedOutput() // prints the path in the build cache
		built.helm = strings.TrimSpace(string(out))
		if err != nil {
			built.err = fmt.Errorf("go tool helm: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.programs
}

// command runs a command and returns its output.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// runHelm runs helm without the settings of a user.
func runHelm(t testing.TB, args ...string) (stdout string, err error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(tools(t).helm, args...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// chart is a rendered chart.
type chart struct {
	docs         [][]byte // each object as YAML
	objects      []meta.Object
	stateful     []*apps.StatefulSet
	services     []*core.Service
	configs      []*core.ConfigMap
	budgets      []*policy.PodDisruptionBudget
	policies     []*networking.NetworkPolicy
	certificates []*certmanager.Certificate
	issuers      []*certmanager.Issuer
	monitors     []*monitoring.ServiceMonitor
}

// helmTemplate renders the chart with values as YAML.
func helmTemplate(t testing.TB, release, values string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return runHelm(t, "template", release, "wanfed", "--namespace", namespace, "--values", file)
}

// render renders the chart and decodes each object into its type. A field that
// the type does not have is an error.
func render(t testing.TB, release, values string) chart {
	t.Helper()
	text, err := helmTemplate(t, release, values)
	if err != nil {
		t.Fatal(err)
	}
	var c chart
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatalf("%v:\n%s", err, doc)
		}
		if kind.Kind == "" {
			continue // only comments
		}
		if err := c.decode(kind.Kind, []byte(doc)); err != nil {
			t.Fatalf("%s: %v:\n%s", kind.Kind, err, doc)
		}
		c.docs = append(c.docs, []byte(doc))
	}
	return c
}

// decode decodes an object and adds it.
func (c *chart) decode(kind string, doc []byte) error {
	switch kind {
	case "StatefulSet":
		return add(doc, &c.objects, &c.stateful)
	case "Service":
		return add(doc, &c.objects, &c.services)
	case "ConfigMap":
		return add(doc, &c.objects, &c.configs)
	case "PodDisruptionBudget":
		return add(doc, &c.objects, &c.budgets)
	case "NetworkPolicy":
		return add(doc, &c.objects, &c.policies)
	case "Certificate":
		return add(doc, &c.objects, &c.certificates)
	case "Issuer":
		return add(doc, &c.objects, &c.issuers)
	case "ServiceMonitor":
		return add(doc, &c.objects, &c.monitors)
	}
	return errors.New("the tests do not know this kind")
}

func add[T any](doc []byte, all *[]meta.Object, list *[]*T) error {
	object := new(T)
	if err := yaml.UnmarshalStrict(doc, object); err != nil {
		return err
	}
	*list = append(*list, object)
	*all = append(*all, any(object).(meta.Object))
	return nil
}

// find returns the object of a name.
func find[T any, P interface {
	*T
	meta.Object
}](t testing.TB, list []*T, name string) *T {
	t.Helper()
	var names []string
	for _, object := range list {
		if P(object).GetName() == name {
			return object
		}
		names = append(names, P(object).GetName())
	}
	t.Fatalf("no %T %s, only %v", *new(T), name, names)
	return nil
}
