// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"cmp"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// consulFromEnv is the value of the setting consul for CONSUL_HTTP_ADDR.
const consulFromEnv = "env"

// consulDomain is the default domain of Consul.
const consulDomain = "consul"

// domain returns the domain of the names in certificates and SNI.
func (s Settings) domain() string {
	if s.Consul != "" {
		return cmp.Or(s.Domain, consulDomain)
	}
	return cmp.Or(s.Domain, tlsutil.DefaultDomain)
}

// checkConsul checks the settings of a gateway of Consul.
func (s Settings) checkConsul(errs *errorList) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"ca_file", s.CAFile != ""}, {"cert_file", s.CertFile != ""}, {"key_file", s.KeyFile != ""},
		{"servers", len(s.Servers) > 0},
	} {
		if f.set {
			errs.addf("%s is a setting of a gateway of wanfed's servers: remove it, or remove consul; CONSUL_CACERT, "+
				"CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY name the files for an agent with https", f.name)
		}
	}
}

// consulAgent returns a client of the Consul agent, with the settings of
// Consul's environment variables. It checks the files that they name.
func (s Settings) consulAgent() (*api.Client, error) {
	cfg := consul.FromEnv()
	if s.Consul != consulFromEnv {
		cfg.Addr = s.Consul
	}
	return cfg.Client()
}

// checkConsulFiles returns the errors of the data directory and of the files
// that Consul's environment variables name.
func (s Settings) checkConsulFiles() error {
	_, err := s.consulAgent()
	return settings.Join(settings.CheckDir("data_dir", s.DataDir), err)
}
