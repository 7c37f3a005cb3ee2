// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/internal/settings"
)

// write writes files, by name, into a new directory, which becomes the current
// one.
func write(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// load returns the configuration of one file with the text.
func load(t *testing.T, text string) *Config {
	t.Helper()
	write(t, map[string]string{"c.hcl": text})
	cfg, err := Load([]string{"c.hcl"}, noEnv)
	if err != nil {
		t.Fatalf("Load(%s) = %v, want nil", text, err)
	}
	return cfg
}

func TestLoad_Defaults(t *testing.T) {
	cfg := load(t, ``)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{ID: "cts-" + host, WorkingDir: "sync-tasks", Port: 8558, Group: "default",
		Buffer: &pb.TaskBuffer{Min: durationpb.New(5 * time.Second), Max: durationpb.New(20 * time.Second)},
		Syslog: Syslog{Facility: "LOCAL0", Name: "consul-terraform-sync"},
		Consul: Consul{Address: "localhost:8500", KVPath: "consul-terraform-sync/", TLS: ConsulTLS{Verify: true},
			Registration: Registration{Enabled: true, Name: "consul-terraform-sync", Check: true}}}
	if diff := cmp.Diff(want, *cfg, protocmp.Transform(), cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "tasks"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("Load() of an empty file differs (-want +got):\n%s", diff)
	}
}

func TestLoad_AllSettings(t *testing.T) {
	cfg := load(t, `
		log_level = "ERR", port = "9000"
		id = "sync-1"
		working_dir = "w"
		group = "edge"
		max_running = 4
		state_key_file = "keys"
		syslog { name = "s" }
		tls { cert = "c", key = "k" }
		wanfed { address = ["10.0.0.1:8300", "10.0.0.2:8300"] ca = "ca.pem" cert = "cert.pem" key = "key.pem" }
		consul {
			address = "https://consul:8501"
			token = "secret"
			auth { username = "u" password = "p" }
			tls { ca_cert = "consul-ca.pem" verify = false }
			transport { max_idle_conns = 3 }
			kv_path = "cts/"
			service_registration { service_name = "sync" default_check { enabled = false address = "https://me:9000" } }
		}
		vault { address = "https://vault" }
		high_availability {
			cluster { name = "c1" storage "consul" { session_ttl = "20s" } }
			instance { address = "me.example.com" }
		}
		driver "terraform" {
			path = "/opt/tf" version = "1.5.7" log = true persist_log = "true"
			required_providers { aws = { source = "hashicorp/aws", version = "5.0" } }
			backend "consul" { gzip = false }
		}`)
	want := Config{LogLevel: slog.LevelError, ID: "sync-1", WorkingDir: "w", Port: 9000, Group: "edge", Cluster: "c1",
		Lease: 20 * time.Second, Address: "me.example.com", MaxRunning: 4, StateKeyFile: "keys",
		Buffer: &pb.TaskBuffer{Min: durationpb.New(5 * time.Second), Max: durationpb.New(20 * time.Second)},
		Syslog: Syslog{Enabled: true, Facility: "LOCAL0", Name: "s"},
		TLS:    TLS{Enabled: true, Cert: "c", Key: "k"},
		Wanfed: Wanfed{Addresses: []string{"10.0.0.1:8300", "10.0.0.2:8300"}, CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"},
		Consul: Consul{Address: "https://consul:8501", Token: "secret", Username: "u", Password: "p", KVPath: "cts/",
			TLS:          ConsulTLS{Enabled: true, CACert: "consul-ca.pem"},
			Registration: Registration{Enabled: true, Name: "sync"}},
		Terraform: Terraform{Path: "/opt/tf", Version: "1.5.7", Log: true, PersistLog: true,
			Required: map[string]driver.RequiredProvider{"aws": {Source: "hashicorp/aws", Version: "5.0"}},
			Backend: &driver.Backend{Type: "consul", Env: map[string]string{"CONSUL_HTTP_TOKEN": "secret", "CONSUL_HTTP_AUTH": "u:p"},
				Body: []driver.Item{{Name: "gzip", Value: []byte(`false`)}, {Name: "address", Value: []byte(`"https://consul:8501"`)},
					{Name: "path", Value: []byte(`"cts/terraform"`)}, {Name: "scheme", Value: []byte(`"https"`)},
					{Name: "ca_file", Value: []byte(`"consul-ca.pem"`)}}}},
		Warnings: []string{
			`c.hcl:20: vault: has no effect: secrets of Vault are not supported; ` + noVault,
			`c.hcl:8: syslog: has no effect: the log goes to stderr, which a service manager can copy to syslog`,
			`c.hcl:16: consul: transport: has no effect: its limits and timeouts are fixed`,
			`c.hcl:18: consul: service_registration: default_check: address: has no effect: the check has a TTL, which the daemon renews`,
			`c.hcl:26: driver "terraform": log: has no effect: wanfed task log prints the output of a run`,
			`c.hcl:26: driver "terraform": persist_log: has no effect: Terraform writes its own log if TF_LOG and ` +
				`TF_LOG_PATH are in the environment of the daemon`,
			`c.hcl:26: driver "terraform": version: has no effect: the daemon uses the program in path, of any version ` +
				`from 0.13 on, and downloads none`,
			`c.hcl:13: consul: token: only Terraform's backend consul uses it, because the source of data is wanfed`,
			`c.hcl:14: consul: auth: only Terraform's backend consul uses it, because the source of data is wanfed`,
			`c.hcl:15: consul: tls: only Terraform's backend consul uses its files, because the source of data is wanfed`,
		},
	}
	if diff := cmp.Diff(want, *cfg, protocmp.Transform(), cmp.FilterPath(func(p cmp.Path) bool {
		return p.String() == "tasks"
	}, cmp.Ignore())); diff != "" {
		t.Errorf("Load() differs (-want +got):\n%s", diff)
	}
}

func TestLoad_Environment(t *testing.T) {
	env := map[string]string{"CONSUL_HTTP_ADDR": "c:1", "CONSUL_HTTP_TOKEN": "t", "CONSUL_CACERT": "ca",
		"CONSUL_CLIENT_CERT": "cert", "CONSUL_CLIENT_KEY": "key", "CONSUL_TLS_SERVER_NAME": "name", "CONSUL_CAPATH": "p"}
	write(t, map[string]string{"c.hcl": `consul { tls { cert = "own" } }`, "off.hcl": `consul { tls { enabled = false } }`})
	cfg, err := Load([]string{"c.hcl"}, func(name string) string { return env[name] })
	if err != nil {
		t.Fatalf("Load() = %v, want nil", err)
	}
	want := ConsulTLS{Enabled: true, Verify: true, CACert: "ca", CAPath: "p", Cert: "own", Key: "key", ServerName: "name"}
	if c := cfg.Consul; c.Address != "c:1" || c.Token != "t" || c.TLS != want {
		t.Errorf("Consul = %+v, want the values of the environment and tls.cert of the file", c)
	}
	if cfg, err = Load([]string{"off.hcl"}, func(name string) string { return env[name] }); err != nil || cfg.Consul.TLS.Enabled {
		t.Errorf("Load(off.hcl) = %+v, %v, want TLS disabled", cfg.Consul.TLS, err)
	}
}

// The environment of a shell for Consul does not need a block "consul".
func TestLoad_EnvironmentWithoutBlock(t *testing.T) {
	write(t, map[string]string{"c.hcl": `id = "s1"`})
	for _, name := range []string{"CONSUL_HTTP_TOKEN", "CONSUL_CACERT", "CONSUL_CAPATH", "CONSUL_CLIENT_CERT", "CONSUL_CLIENT_KEY"} {
		c, err := Load([]string{"c.hcl"}, func(n string) string {
			if n == name {
				return "value"
			}
			return ""
		})
		if err != nil || len(c.Warnings) > 0 {
			t.Errorf("Load() with %s = %v, warnings %q, want none", name, err, c.Warnings)
		}
	}
}

func TestLoad_Merge(t *testing.T) {
	write(t, map[string]string{
		"a.hcl": `
			port = 1
			buffer_period { min = "2s" }
			consul { address = "a" token = "t" }
			driver "terraform" { path = "p" required_providers { aws = { source = "a/aws" } } }
			terraform_provider "aws" {}
			service { name = "db" id = "far" datacenter = "dc2" }
			task { name = "one" module = "m" services = ["far", "web"] buffer_period { max = "9s" } }`,
		"d/1.json": `{"port": 2, "consul": {"address": "b"}, "terraform_provider": [{"aws": {"alias": "x"}}],
			"driver": {"terraform": {"required_providers": {"dns": {"source": "b/dns"}}}},
			"task": {"name": "two", "module": "m", "condition": {"services": {"names": ["a"]}, "nodes": {}}}}`,
		"d/2.hcl":       `port = 3`,
		"d/readme.txt":  `not a configuration`,
		"d/sub/x.hcl":   `port = 4`,
		"d/x.hcl/y.hcl": `port = 5`,
	})
	cfg, err := Load([]string{"a.hcl", "d"}, noEnv)
	if err != nil {
		t.Fatalf("Load() = %v, want nil", err)
	}
	if cfg.Port != 3 || cfg.Consul.Address != "b" || cfg.Consul.Token != "t" || cfg.Terraform.Path != "p" ||
		len(cfg.Terraform.Required) != 2 || len(cfg.Providers) != 2 {
		t.Errorf("Load() = %+v, want the last scalars and all elements of maps", cfg)
	}
	var names []string
	for _, task := range cfg.Tasks {
		names = append(names, fmt.Sprintf("%s %s %d", task.Name, task.Pos, len(task.Task.Conditions)))
	}
	if want := []string{"one a.hcl:8 2", "two d/1.json:3 2"}; !cmp.Equal(names, want) {
		t.Errorf("tasks = %q, want %q", names, want)
	}
	// The minimum is that of the file, and the maximum of the file four times the minimum.
	one := cfg.Tasks[0].Task.Buffer
	if one.Min.AsDuration() != 2*time.Second || one.Max.AsDuration() != 9*time.Second ||
		cfg.Buffer.Max.AsDuration() != 8*time.Second || cfg.Tasks[1].Task.Buffer != nil {
		t.Errorf("buffers = %v, %v and %v, want 2s to 9s, nil, and 2s to 8s", one, cfg.Tasks[1].Task.Buffer, cfg.Buffer)
	}
}

func TestLoad_Additions(t *testing.T) {
	cfg := load(t, `
		group = "edge"
		task {
			name = "t", driver = "exec", timeout = "2h", grace = "5s", drift_check = "6h", on_delete = "keep"
			exec { command = ["a", "b"] plan = ["p"] destroy = "d" env { A = "1", "B" = 2 } }
			guard { approve = true empty_input = true }
			condition "datacenter" { datacenter = "dc2" state = "unreachable" for = "30s" on = ["changed"] }
			condition "resource" { type = "config/v1/Document" prefix = "a/" }
			condition "document" { names = ["d"] }
			condition "federation" {}
			condition "gateway" { regexp = "" }
			condition "member" { use_as_module_input = false }
			condition "nodes" { filter = "Meta.rack == \"r1\"" node_meta { rack = "r1" } }
		}
		task { name = "u" group = "core" module = "m" parallelism = 3 condition "nodes" {} guard { max_destroy = 3 } buffer_period { enabled = false } }`)
	empty := ""
	want := []*pb.Task{{
		Enabled: new(true), Group: "edge", Driver: "exec", Origin: "file", OnDelete: "keep",
		Timeout: durationpb.New(2 * time.Hour), Grace: durationpb.New(5 * time.Second), DriftCheck: durationpb.New(6 * time.Hour),
		Exec: &pb.ExecDriver{Command: []string{"a", "b"}, Plan: []string{"p"}, Destroy: []string{"d"},
			Env: map[string]string{"A": "1", "B": "2"}},
		Guard: &pb.TaskGuard{Approve: true, EmptyInput: true},
		Conditions: []*pb.TaskQuery{
			{Kind: "datacenter", Datacenter: "dc2", State: "unreachable", For: durationpb.New(30 * time.Second), On: []string{"changed"}},
			{Kind: "resource", Type: "config/v1/Document", Prefix: "a/"}, {Kind: "document", Names: []string{"d"}},
			{Kind: "federation"}, {Kind: "gateway", Regexp: &empty}, {Kind: "member", TriggerOnly: true},
			{Kind: "nodes", Filter: `Meta.rack == "r1"`, NodeMeta: map[string]string{"rack": "r1"}},
		},
	}, {
		Enabled: new(true), Group: "core", Driver: "terraform", Origin: "file", Conditions: []*pb.TaskQuery{{Kind: "nodes"}},
		Terraform: &pb.TerraformDriver{Module: "m", Parallelism: 3}, Guard: &pb.TaskGuard{MaxDestroy: "3"}, Buffer: &pb.TaskBuffer{Disabled: true},
	}}
	if diff := cmp.Diff(want, []*pb.Task{cfg.Tasks[0].Task, cfg.Tasks[1].Task}, protocmp.Transform()); diff != "" {
		t.Errorf("tasks differ (-want +got):\n%s", diff)
	}
}

func TestLoad_Errors(t *testing.T) {
	const condition = `condition "services" { names = ["a"] }`
	for _, test := range []struct{ text, want string }{
		{"e = 1\nd = 2\nc = 3\nb = 4\na = 5", "c.hcl:1: unknown keys: a, b, c, d, e"},
		{`log_level = "LOUD"`, "c.hcl:1: log_level: \"LOUD\""},
		{`port = 70000`, "c.hcl:1: port: \"70000\": must be a number from 0 to 65535"},
		{`port = 99999999999999999999`, "c.hcl:1: bad value: must be a number of 64 bits"},
		{`id = "a\q"`, "c.hcl:1: illegal char escape"},
		{`id = s3cret`, "c.hcl:1: a value is missing, or a string without quotes"},
		{`id = ["a"]`, "c.hcl:1: id: must be a string"},
		{`consul = "x"`, "c.hcl:1: consul: must be a block"},
		{"consul {}\nconsul {}", "c.hcl:2: consul: may occur only once"},
		{`consul { auth { user = "u" } }`, "c.hcl:1: consul: auth: unknown keys: user"},
		{`tls { enabled = 2 }`, "c.hcl:1: tls: enabled: \"2\": must be true or false"},
		{`high_availability { cluster { storage "consul" {} } }`, "high_availability: cluster: name"},
		{`high_availability {}`, "c.hcl:1: high_availability: cluster: the block cluster is required"},
		{`high_availability { cluster { name = "c" storage "etcd" {} } }`, `storage "etcd": the storage must be "consul"`},
		{`high_availability { cluster { name = "c" storage "consul" { session_ttl = "1ms" } } }`, "session_ttl: 1ms: must be"},
		{`high_availability { cluster { name = "c" storage "consul" { session_ttl = "2h" } } }`, "session_ttl: 2h0m0s: must be"},
		{`driver = "terraform"`, "c.hcl:1: driver: must be a block"},
		{`driver "ansible" { x = 1 }`, `c.hcl:1: driver "ansible": unknown driver`},
		{`driver "terraform" { backend "s3" { key = "{{ env \"X\" }}" } }`, `backend "s3": key: only terraform_provider`},
		{`license_path = "x"`, "c.hcl:1: license_path: is not supported"},
		{`terraform_provider "panos" { auto_commit = true }`, `terraform_provider "panos": auto_commit: is not supported`},
		{`terraform_provider "a" { x = "{{ range }}" }`, `terraform_provider "a": x: `},
		{`terraform_provider "a" { b { x = "{{ upper }}" } }`, `terraform_provider "a": b: x: template: template:1: function "upper"`},
		{`terraform_provider "a" { x = "{{ if env \"N\" }}y{{ end }}" }`, `x: {{if env "N"}}y{{end}} is not supported: templates have`},
		{`terraform_provider "a" { x = "{{ env \"N\" | key }}" }`, `x: {{env "N" | key}} is not supported: templates have`},
		{`terraform_provider "a" { x = "{{ env }}" }`, `x: {{env}} is not supported: templates have`},
		{`task { name = "t" module = "m" source = "n" ` + condition + ` }`, `task "t": module: may occur only once`},
		{`task { name = "t" module = "m" terraform_version = "1" ` + condition + ` }`, "terraform_version: is not supported"},
		{`task { name = "t" module = "m" driver = "shell" ` + condition + ` }`, `task "t": driver: "shell"`},
		{`task { name = "t" module = "m" driver = "exec" ` + condition + ` }`, `task "t": module: only the driver terraform`},
		{`task { name = "t" driver = "exec" ` + condition + ` }`, `task "t": exec.command: a command`},
		{`task { name = "t" driver = "exec" exec {} ` + condition + ` }`, `task "t": exec: command: a command`},
		{`task { name = "t" module = "m" exec { command = ["a"] } ` + condition + ` }`, `task "t": exec: the driver is terraform`},
		{`task { name = "t" driver = "exec" exec { command = "c" } guard { approve = true } ` + condition + ` }`,
			`task "t": exec: plan: a guard needs a plan command`},
		{`task { name = "t" module = "m" guard { max_destroy = "many" } ` + condition + ` }`, `task "t": guard: max_destroy: "many"`},
		{`task { name = "t" module = "m" buffer_period { max = "9000h" } ` + condition + ` }`, `task "t": buffer_period: max: 9000h`},
		{`task { name = "t" module = "m" condition { names = ["a"] } }`, `task "t": condition "names": must be a block`},
		{`task { name = "t" module = "m" condition "weather" {} }`, `task "t": condition "weather": "weather" is not a kind`},
		{`task { name = "t" module = "m" condition "services" { names = ["a"] on = ["moved"] } }`,
			`condition "services": on: "moved"`},
		{`task { name = "t" module = "m" condition "member" { cts_user_defined_meta { a = "b" } } }`,
			`condition "member": cts_user_defined_meta: member has no user_meta`},
	} {
		write(t, map[string]string{"c.hcl": test.text})
		_, err := Load([]string{"c.hcl"}, noEnv)
		if err == nil || !strings.Contains(err.Error(), test.want) || len(settings.Split(err)) != 1 {
			t.Errorf("Load(%s) = %v, want one error with %q", test.text, err, test.want)
		} else if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Load(%s) = %v, want no value of the file", test.text, err)
		}
	}
}

func TestLoad_AllErrors(t *testing.T) {
	write(t, map[string]string{"a.hcl": "foo = 1\nport = \"x\"", "b.json": `{"bar": 1, "id": []}`})
	_, err := Load([]string{"a.hcl", "b.json"}, noEnv)
	if got := settings.Split(err); len(got) != 4 {
		t.Errorf("Load() = %v, want four errors", err)
	}
}

func TestLoad_BadFiles(t *testing.T) {
	write(t, map[string]string{
		"a.txt": ``, "nul.hcl": "id = \"a\x00\"", "deep.hcl": "a = " + strings.Repeat("[", 20000),
		"deep.json": `{"a":` + strings.Repeat("[", 20000), "large.hcl": strings.Repeat("#", settings.MaxFile+1),
		"after.json": "{\"port\": 1}\n{}", "list.json": "\n[]", "cut.json": "{\"port\":\n 1", "bad.json": "{\n\"port\": x}",
	})
	for file, want := range map[string]string{
		"a.txt": "must end in .hcl or .json", "nul.hcl": "not a text file", "deep.hcl": "nested too deep",
		"deep.json": "nested too deep", "large.hcl": "more than", "missing.hcl": "missing.hcl does not exist",
		"after.json": "after.json:2: data after the object", "list.json": "list.json:2: the file must be an object",
		"cut.json": "cut.json:2: unexpected EOF", "bad.json": "bad.json:2: invalid character",
	} {
		if _, err := Load([]string{file}, noEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s) = %v, want an error with %q", file, err, want)
		}
	}
}

func TestLoad_VariableFiles(t *testing.T) {
	write(t, map[string]string{
		"1.tfvars": "a = 1\nb = [true, null]\n", "2.tfvars.json": `{"a": "two"}`, "ref.tfvars": "a = var.x\n", "bad.tfvars": "a = \n",
		"c.hcl":   `task { name = "t" module = "m" variable_files = ["1.tfvars", "2.tfvars.json"] condition "nodes" {} }`,
		"ref.hcl": "task {\n name = \"t\" \n module = \"m\"\n variable_files = [\"ref.tfvars\"]\n condition \"nodes\" {} }",
		"bad.hcl": `task { name = "t" module = "m" variable_files = ["bad.tfvars"] condition "nodes" {} }`,
	})
	cfg, err := Load([]string{"c.hcl"}, noEnv)
	if err != nil {
		t.Fatalf("Load() = %v, want nil", err)
	}
	want := map[string]string{"a": `"two"`, "b": "[true, null]"}
	if got := cfg.Tasks[0].Task.Variables; !cmp.Equal(got, want) {
		t.Errorf("variables = %q, want %q", got, want)
	}
	for file, want := range map[string]string{"ref.hcl": `ref.hcl:4: task "t": variable_files: ref.tfvars:1,5: `,
		"bad.hcl": `bad.hcl:1: task "t": variable_files: bad.tfvars:1,`} {
		if _, err := Load([]string{file}, noEnv); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Load(%s) = %v, want an error that begins with %q", file, err, want)
		}
	}
}

func TestDetect(t *testing.T) {
	for text, want := range map[string]bool{
		"task {\n name = \"a\"\n}": true, "wanfed { ca = \"x\" }": true, "dc = \"dc1\"": false,
		"route \"a\" { to = [\"b:1\"] }": false, "task {": false, "": false,
	} {
		if got := Detect("x.hcl", []byte(text)); got != want {
			t.Errorf("Detect(%q) = %v, want %v", text, got, want)
		}
	}
}
