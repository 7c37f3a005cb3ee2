// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/yannh/kubeconform/pkg/resource"
	"github.com/yannh/kubeconform/pkg/validator"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/openapi/openapitest"
	"sigs.k8s.io/yaml"
)

// TestChart_Objects checks all objects of all cases: schemas, the connections
// between them, and the restrictions of containers.
func TestChart_Objects(t *testing.T) {
	conform := newValidator(t)
	for name, values := range cases {
		t.Run(name, func(t *testing.T) {
			c := render(t, "wanfed", values)
			checked := 0
			for _, doc := range c.docs {
				switch r := conform.ValidateResource(resource.Resource{Bytes: doc}); r.Status {
				case validator.Valid:
					checked++
				case validator.Skipped: // there is no schema: the type has been checked
				default:
					t.Errorf("kubeconform: %v\n%s", r.Err, doc)
				}
			}
			if checked < 4 {
				t.Errorf("kubeconform checked %d objects, want 4 or more", checked)
			}
			names := map[string]bool{}
			for i, o := range c.objects {
				key := fmt.Sprintf("%T %s", o, o.GetName())
				if names[key] || o.GetNamespace() != namespace || o.GetLabels()["app.kubernetes.io/instance"] != "wanfed" {
					t.Errorf("%s: occurs twice, or has a wrong namespace or labels:\n%s", key, c.docs[i])
				}
				names[key] = true
			}
			c.checkSelectors(t)
			for _, s := range c.stateful {
				checkRestricted(t, s.Name, s.Spec.Template.Spec)
				checkVolumes(t, s.Name, s.Spec.Template.Spec, s.Spec.VolumeClaimTemplates)
				find(t, c.services, s.Spec.ServiceName)
			}
		})
	}
}

// checkSelectors checks that each selector matches pods, and that the named ports
// exist.
func (c chart) checkSelectors(t *testing.T) {
	t.Helper()
	check := func(what string, selector map[string]string, ports ...intstr.IntOrString) {
		t.Helper()
		matched := false
		for _, s := range c.stateful {
			pod := s.Spec.Template
			if !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
				continue
			}
			matched = true
			for _, port := range ports {
				if !slices.ContainsFunc(pod.Spec.Containers, func(k core.Container) bool {
					return slices.ContainsFunc(k.Ports, func(p core.ContainerPort) bool { return p.Name == port.StrVal })
				}) {
					t.Errorf("%s: pods of %s have no port %s", what, s.Name, port.StrVal)
				}
			}
		}
		if !matched || len(selector) == 0 {
			t.Errorf("%s selects no pod: %v", what, selector)
		}
	}
	for _, s := range c.stateful {
		check("StatefulSet "+s.Name, s.Spec.Selector.MatchLabels)
	}
	for _, s := range c.services {
		for _, p := range s.Spec.Ports {
			check("Service "+s.Name, s.Spec.Selector, p.TargetPort)
		}
	}
	for _, b := range c.budgets {
		check("PodDisruptionBudget "+b.Name, b.Spec.Selector.MatchLabels)
	}
	for _, p := range c.policies {
		for _, rule := range p.Spec.Ingress {
			check("NetworkPolicy "+p.Name, p.Spec.PodSelector.MatchLabels, *rule.Ports[0].Port)
			for _, from := range rule.From {
				if from.PodSelector != nil {
					check("NetworkPolicy "+p.Name, from.PodSelector.MatchLabels)
				}
			}
		}
	}
	for _, m := range c.monitors {
		matched := false
		for _, s := range c.services {
			if labels.SelectorFromSet(m.Spec.Selector.MatchLabels).Matches(labels.Set(s.Labels)) {
				matched = matched || slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool {
					return p.Name == m.Spec.Endpoints[0].Port
				})
			}
		}
		if !matched {
			t.Errorf("ServiceMonitor %s selects no Service with the port %s", m.Name, m.Spec.Endpoints[0].Port)
		}
	}
}

// checkRestricted checks the rules of the Pod Security Standard "restricted", and
// that the root file system is read-only and the pod has no token.
func checkRestricted(t *testing.T, name string, spec core.PodSpec) {
	t.Helper()
	s := spec.SecurityContext
	if s == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: security context of the pod = %+v, want that it is restricted", name, s)
	}
	if *spec.AutomountServiceAccountToken || *spec.EnableServiceLinks || spec.HostNetwork || spec.HostPID {
		t.Errorf("%s: the pod has a token, variables of Services, or the host's namespaces", name)
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		s := c.SecurityContext
		if s == nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.Privileged != nil ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s: security context of %s = %+v, want that it is restricted", name, c.Name, s)
		}
		if c.Resources.Requests.Memory().IsZero() {
			t.Errorf("%s: container %s requests no memory", name, c.Name)
		}
	}
	for _, c := range spec.Containers {
		if c.LivenessProbe == nil || c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe == nil ||
			c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.StartupProbe == nil {
			t.Errorf("%s: container %s lacks a probe", name, c.Name)
		}
	}
}

// checkVolumes checks that each mounted volume exists.
func checkVolumes(t *testing.T, name string, spec core.PodSpec, claims []core.PersistentVolumeClaim) {
	t.Helper()
	var all []string
	for _, v := range spec.Volumes {
		all = append(all, v.Name)
	}
	for _, c := range claims {
		all = append(all, c.Name)
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, m := range c.VolumeMounts {
			if !slices.Contains(all, m.Name) {
				t.Errorf("%s: container %s mounts the volume %s, and the pod has only %v", name, c.Name, m.Name, all)
			}
		}
	}
}

// newValidator returns kubeconform with the schemas that modules contain: core/v1
// and apps/v1 of Kubernetes, and cert-manager. It skips other kinds.
func newValidator(t *testing.T) validator.Validator {
	t.Helper()
	dir := t.TempDir()
	// write writes a schema to the name that kubeconform expects, such as
	// statefulset-apps-v1.json.
	write := func(schema any, parts ...string) {
		t.Helper()
		data, err := json.Marshal(schema)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, strings.ToLower(strings.Join(parts, "-"))+".json"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	paths, err := openapitest.NewEmbeddedFileClient().Paths()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"api/v1", "apis/apps/v1"} {
		data, err := paths[path].Schema("application/json")
		var doc struct {
			Components struct{ Schemas map[string]any }
		}
		if err == nil {
			err = json.Unmarshal(data, &doc)
		}
		if err != nil {
			t.Fatal(err)
		}
		components := map[string]any{"schemas": doc.Components.Schemas}
		strict(components)
		for name, schema := range doc.Components.Schemas {
			kinds, _ := schema.(map[string]any)["x-kubernetes-group-version-kind"].([]any)
			if len(kinds) != 1 {
				continue
			}
			gvk := kinds[0].(map[string]any)
			root := map[string]any{"$ref": "#/components/schemas/" + name, "components": components}
			if group := gvk["group"].(string); group != "" {
				write(root, gvk["kind"].(string), group, gvk["version"].(string))
			} else {
				write(root, gvk["kind"].(string), gvk["version"].(string))
			}
		}
	}
	certManager := strings.TrimSpace(command(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cert-manager/cert-manager"))
	for _, name := range []string{"certificates", "issuers"} {
		data, err := os.ReadFile(filepath.Join(certManager, "deploy", "crds", "cert-manager.io_"+name+".yaml"))
		var crd struct {
			Spec struct {
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err == nil {
			err = yaml.Unmarshal(data, &crd)
		}
		if err != nil || len(crd.Spec.Versions) != 1 {
			t.Fatalf("%s: %v, %d versions, want one", name, err, len(crd.Spec.Versions))
		}
		v := crd.Spec.Versions[0]
		delete(v.Schema.OpenAPIV3Schema["properties"].(map[string]any), "metadata")
		strict(v.Schema.OpenAPIV3Schema["properties"])
		write(v.Schema.OpenAPIV3Schema, crd.Spec.Names.Kind, "cert-manager", v.Name)
	}
	entries, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(entries) < 20 {
		t.Fatalf("schemas = %v (%v), want those of all kinds", entries, err)
	}
	v, err := validator.New([]string{filepath.Join(dir, "{{ .ResourceKind }}{{ .KindSuffix }}.json")},
		validator.Opts{IgnoreMissingSchemas: true, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// strict makes all objects of a schema refuse fields that it does not have.
func strict(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if _, ok := s["properties"].(map[string]any); ok && s["additionalProperties"] == nil &&
			s["x-kubernetes-preserve-unknown-fields"] == nil {
			s["additionalProperties"] = false
		}
		for _, v := range slices.Collect(maps.Values(s)) {
			strict(v)
		}
	case []any:
		for _, v := range s {
			strict(v)
		}
	}
}
