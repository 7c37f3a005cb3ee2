// SPDX-License-Identifier: MPL-2.0

package config

import (
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/consul"
)

// consulSource has the block consul of a file of CTS, and the block wanfed.
const consulSource = `
	consul {
		address = "consul:8501"
		token   = "secret"
		tls {
			ca_cert = "ca.pem"
			verify  = false
		}
	}
	wanfed {
		source  = "consul"
		address = ["10.0.0.1:8300"]
	}
	task {
		name   = "t"
		driver = "exec"
		exec { command = ["true"] }
		condition "catalog-services" { regexp = "web" }
		module_input "consul-kv" { path = "k" }
	}
	task {
		name   = "u"
		driver = "exec"
		exec { command = ["true"] }
		condition "schedule" { cron = "* * * * *" }
		module_input "nodes" {}
	}`

func TestLoad_ConsulSource(t *testing.T) {
	cfg := load(t, consulSource)
	if !cfg.Wanfed.FromConsul {
		t.Error("FromConsul = false, want true")
	}
	file := func(name, path string) consul.File { return consul.File{Path: path, Setting: "consul.tls." + name} }
	want := consul.Config{Addr: "consul:8501", TLS: true, Token: "secret", SkipVerify: true, CA: file("ca_cert", "ca.pem"),
		CADir: file("ca_path", ""), Cert: file("cert", ""), Key: file("key", "")}
	if got := cfg.ConsulAgent(); got != want {
		t.Errorf("ConsulAgent() = %+v, want %+v", got, want)
	}
	const warning = "c.hcl:5: consul: tls: verify is false: the certificate of the agent is not verified"
	if len(cfg.Warnings) != 1 || cfg.Warnings[0] != warning {
		t.Errorf("warnings = %q, want %q", cfg.Warnings, warning)
	}
}

func TestLoad_ConsulSourceRefused(t *testing.T) {
	for name, tt := range map[string]struct{ old, replaced, want string }{
		"no address":      {`address = ["10.0.0.1:8300"]`, ``, `c.hcl:11: wanfed: address: source "consul" needs the server ports`},
		"unknown source":  {`"consul"` + "\n\t\taddress", `"etcd"` + "\n\t\taddress", `c.hcl:11: wanfed: source: "etcd": must be`},
		"kind of wanfed":  {`condition "catalog-services" { regexp = "web" }`, `condition "federation" {}`, `Consul does not have this data`},
		"input of wanfed": {`module_input "nodes" {}`, `module_input "document" {}`, `Consul does not have this data`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(consulSource, tt.old, tt.replaced, 1)
			if text == consulSource {
				t.Fatalf("the file does not have %q", tt.old)
			}
			write(t, map[string]string{"c.hcl": text})
			if _, err := Load([]string{"c.hcl"}, noEnv); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load() = %v, want an error with %q", err, tt.want)
			}
		})
	}
}
