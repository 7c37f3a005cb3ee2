// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// certManager are the least values of a primary with cert-manager.
const certManager = `datacenter: dc1
certificates: {ca: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", certManager: {caSecret: dc1-ca}}
gateway: {wan: "198.51.100.1:8443"}
`

// cases are values that the chart accepts.
var cases = map[string]string{
	"cert-manager": certManager,
	"secondary with an issuer": `datacenter: dc2
primary: {datacenter: dc1, gateways: ["198.51.100.1:8443"]}
certificates:
  ca: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
  certManager: {issuer: {name: wan, kind: ClusterIssuer}}
server: {replicas: 1}
gateway: {replicas: 1, wan: "gw.dc2.example.com:443", service: {loadBalancerClass: example.com/lb, loadBalancerSourceRanges: [198.51.100.0/24]}}
`,
	"secrets": `datacenter: dc1
domain: example
fullnameOverride: short
certificates: {source: secrets, ca: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}
server:
  replicas: 5
  settings: {mesh_gateway_mode: auto, operators_from: [dc2], dead_server_after: 1h}
  storage: {size: 20Gi, className: fast}
gateway:
  wan: "[2001:db8::1]:8443"
  settings: {wan_allow: [198.51.100.0/24], max_conns: 5000}
  service: {type: NodePort, nodePort: 30443, externalTrafficPolicy: Cluster, annotations: {example.com/a: b}}
image: {repository: registry.example.com/wanfed, digest: "sha256:` + digest + `", pullSecrets: [registry]}
serviceAccountName: wan
networkPolicy: {monitoringFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
`,
	"enrolment of the primary": `datacenter: dc1
certificates: {source: enrolment}
server: {replicas: 1, settings: {log_level: debug}}
gateway: {replicas: 1, wan: "198.51.100.1:8443"}
serviceMonitor: {enabled: true}
`,
	"enrolment with a token": `datacenter: dc2
certificates: {source: enrolment, enrolment: {tokenSecret: token}}
server: {replicas: 1, nodeSelector: {disk: fast}, tolerations: [{key: wan, operator: Exists}], affinity: {nodeAffinity: {}}}
gateway: {replicas: 1, wan: "203.0.113.2:8443", service: {type: ClusterIP}}
podDisruptionBudget: {enabled: false}
networkPolicy: {enabled: false}
`,
}

const digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func TestChart_Lint(t *testing.T) {
	for name, values := range cases {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := runHelm(t, "lint", "wanfed", "--strict", "--values", file); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

func TestChart_WrongValues(t *testing.T) {
	for values, want := range map[string]string{
		`{}`: "datacenter",
		strings.Replace(certManager, "dc1\n", "DC_1\n", 1):                                  "/datacenter",
		strings.Replace(certManager, `"198.51.100.1:8443"`, `""`, 1):                        "/gateway/wan",
		strings.Replace(certManager, `"198.51.100.1:8443"`, `"198.51.100.1"`, 1):            "/gateway/wan",
		strings.Replace(certManager, `caSecret: dc1-ca`, ``, 1):                             "caSecret is required",
		strings.Replace(certManager, `caSecret`, `caSceret`, 1):                             "caSceret",
		strings.Replace(certManager, "-----BEGIN", "-----BGIN", 1):                          "/certificates/ca",
		certManager + "server: {replicas: 2}\n":                                             "/server/replicas",
		certManager + "primary: {datacenter: dc2}\n":                                        "/primary/gateways",
		certManager + "server: {settings: {node: {a: b}}}\n":                                "/server/settings/node",
		strings.Replace(cases["enrolment of the primary"], "replicas: 1", "replicas: 3", 1): "/server/replicas",
	} {
		if _, err := helmTemplate(t, "x", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("helm template with the values\n%s= %v, want an error with %q", values, err, want)
		}
	}
}

// leaves returns the paths of all values that are not maps, and of empty maps,
// with the value as JSON.
func leaves(t testing.TB, path string, value any, into map[string]string) {
	t.Helper()
	if m, ok := value.(map[string]any); ok && len(m) > 0 && !strings.HasSuffix(path, ".resources") {
		for key, v := range m {
			leaves(t, strings.TrimPrefix(path+"."+key, "."), v, into)
		}
		return
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	into[path] = string(text)
}

// TestChart_ReadmeListsValues compares the README and the schema with values.yaml.
func TestChart_ReadmeListsValues(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join("wanfed", name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var values map[string]any
	if err := yaml.Unmarshal(read("values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(read("values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	leaves(t, "", values, all)
	listed := map[string]string{}
	for line := range strings.Lines(string(read("README.md"))) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			listed[strings.Trim(cells[1], " `")] = strings.Trim(cells[2], " `")
		}
	}
	if len(all) < 30 {
		t.Fatalf("values.yaml has %d values, want all of the chart", len(all))
	}
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if got, ok := listed[path]; !ok || got != all[path] && !strings.HasSuffix(path, ".resources") {
			t.Errorf("README.md has the line %q: %q (%v), want the default %s", path, got, ok, all[path])
		}
		node := schema
		for key := range strings.SplitSeq(path, ".") {
			properties, _ := node["properties"].(map[string]any)
			next, ok := properties[key].(map[string]any)
			if !ok {
				t.Errorf("values.schema.json lacks %s", path)
				break
			}
			node = next
		}
	}
	for path := range listed {
		if _, ok := all[path]; !ok {
			t.Errorf("README.md lists %s, which values.yaml does not have", path)
		}
	}
}
