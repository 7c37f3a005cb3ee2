// SPDX-License-Identifier: MPL-2.0

package syncd_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/syncd"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestCheckFiles(t *testing.T) {
	pki, err := subprocess.NewPKI(filepath.Join(t.TempDir(), "pki"), "")
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role tlsutil.Role) config.Wanfed {
		f, err := pki.Issue(role, "dc1", "s1")
		if err != nil {
			t.Fatal(err)
		}
		return config.Wanfed{CA: f.CA, Cert: f.Cert, Key: f.Key}
	}
	good := issue(tlsutil.RoleSync)
	fromConsul := good
	fromConsul.FromConsul = true
	https := func(t config.ConsulTLS) config.Consul {
		t.Enabled = true
		return config.Consul{Address: "localhost:8501", TLS: t}
	}
	for name, tt := range map[string]struct {
		cfg  config.Config
		want string // of the error
	}{
		"only tasks":         {config.Config{}, ""},
		"complete":           {config.Config{Wanfed: good, TLS: config.TLS{Enabled: true, Cert: good.Cert, Key: good.Key}}, ""},
		"other role":         {config.Config{Wanfed: issue(tlsutil.RoleClient)}, "needs the role sync"},
		"no key":             {config.Config{Wanfed: config.Wanfed{CA: good.CA, Cert: good.Cert}}, "the block wanfed needs ca, cert and key"},
		"no state keys":      {config.Config{StateKeyFile: "/absent"}, "/absent"},
		"API without a file": {config.Config{TLS: config.TLS{Enabled: true, Cert: "/absent", Key: good.Key}}, "tls: open /absent"},
		"Consul": {config.Config{Wanfed: fromConsul, Consul: https(config.ConsulTLS{CACert: good.CA, Cert: good.Cert, Key: good.Key})},
			""},
		"Consul without a CA file":  {config.Config{Wanfed: fromConsul, Consul: https(config.ConsulTLS{CACert: "/absent"})}, "consul.tls.ca_cert: open /absent"},
		"Consul without a key":      {config.Config{Wanfed: fromConsul, Consul: https(config.ConsulTLS{Cert: good.Cert})}, "consul.tls.cert and consul.tls.key: one is set"},
		"Consul without a CA":       {config.Config{Wanfed: fromConsul, Consul: https(config.ConsulTLS{CAPath: t.TempDir()})}, "has no files"},
		"Consul without an address": {config.Config{Wanfed: fromConsul, Consul: config.Consul{Address: "http://a/b"}}, "consul: HTTP address"},
		"unused files of Consul":    {config.Config{Wanfed: good, Consul: https(config.ConsulTLS{CACert: "/absent"})}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := syncd.CheckFiles(&tt.cfg)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("CheckFiles() = %v, want %q", err, tt.want)
			}
		})
	}
}
