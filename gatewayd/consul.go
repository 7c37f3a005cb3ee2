// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/wanfed/wanfed/api"
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
	if s.SendProxyProtocol {
		errs.addf("server_proxy_protocol is set, but Consul's servers do not accept a PROXY header: remove it")
	}
}

// consulAgent returns a client of the Consul agent, with the settings of
// Consul's environment variables. It checks the files that they name.
func (s Settings) consulAgent() (*api.Client, error) {
	cfg := api.ClientConfig{Addr: s.Consul, Token: os.Getenv("CONSUL_HTTP_TOKEN")}
	if s.Consul == consulFromEnv {
		cfg.Addr = os.Getenv("CONSUL_HTTP_ADDR") // empty: the default
	}
	if path := os.Getenv("CONSUL_HTTP_TOKEN_FILE"); path != "" && cfg.Token == "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("CONSUL_HTTP_TOKEN_FILE: %w", err)
		}
		if strings.TrimSpace(string(b)) == "" {
			return nil, fmt.Errorf("CONSUL_HTTP_TOKEN_FILE: %s is empty; write the secret id of a token to it", path)
		}
		cfg.TokenFile = path
	}
	if strings.HasPrefix(cfg.Addr, "https://") {
		var err error
		if cfg.TLS, err = consulTLS(); err != nil {
			return nil, err
		}
	}
	agent, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return agent, nil
}

// consulTLS returns the TLS configuration for an agent with https.
func consulTLS() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: os.Getenv("CONSUL_TLS_SERVER_NAME")}
	if path := os.Getenv("CONSUL_CACERT"); path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("CONSUL_CACERT: %w", err)
		}
		certs, err := tlsutil.ParseCerts(b)
		if err != nil {
			return nil, fmt.Errorf("CONSUL_CACERT: %s: %w", path, err)
		}
		cfg.RootCAs = x509.NewCertPool()
		for _, c := range certs {
			cfg.RootCAs.AddCert(c)
		}
	}
	cert, key := os.Getenv("CONSUL_CLIENT_CERT"), os.Getenv("CONSUL_CLIENT_KEY")
	if cert == "" && key == "" {
		return cfg, nil
	}
	if cert == "" || key == "" {
		return nil, errors.New("CONSUL_CLIENT_CERT and CONSUL_CLIENT_KEY: one is set without the other; set both")
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("CONSUL_CLIENT_CERT %s and CONSUL_CLIENT_KEY %s: %w", cert, key, err)
		}
		return &pair, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	// Each handshake reads the files, so a renewed certificate is used.
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return cfg, nil
}

// checkConsulFiles returns the errors of the data directory and of the files
// that Consul's environment variables name.
func (s Settings) checkConsulFiles() error {
	_, err := s.consulAgent()
	return settings.Join(settings.CheckDir("data_dir", s.DataDir), err)
}
