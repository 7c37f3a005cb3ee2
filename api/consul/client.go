// SPDX-License-Identifier: MPL-2.0

package consul

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config describes the connection to an agent. The zero value is an agent at
// api.DefaultHTTPAddr without TLS and token.
type Config struct {
	// Addr is HOST:PORT or a URL. An address without a scheme has the scheme
	// https if TLS is true, and otherwise http.
	Addr string
	TLS  bool
	// Token is the ACL token. TokenFile is a file with it, which each request
	// reads. Token has precedence. Both may be empty.
	Token     string
	TokenFile File
	// Username and Password are for HTTP basic authentication. Default: none.
	Username, Password string

	// CA is a PEM file, and CADir a directory of PEM files, with certificates
	// that sign the certificate of the agent. CA has precedence. Default: the
	// system's CAs.
	CA, CADir File
	// Cert and Key are the PEM files of a client certificate. Each handshake
	// reads them. Both may be absent.
	Cert, Key File
	// ServerName is the name in the certificate of the agent. Default: the host
	// of Addr.
	ServerName string
	// SkipVerify accepts any certificate of the agent.
	SkipVerify bool
}

// File is a file that a setting names.
type File struct {
	Path    string // empty: not set
	Setting string // name of the setting, for errors
}

// FromEnv returns the configuration of Consul's environment variables.
func FromEnv() Config {
	file := func(name string) File { return File{os.Getenv(name), name} }
	return Config{
		Addr:  os.Getenv("CONSUL_HTTP_ADDR"),
		Token: os.Getenv("CONSUL_HTTP_TOKEN"), TokenFile: file("CONSUL_HTTP_TOKEN_FILE"),
		CA: file("CONSUL_CACERT"), CADir: file("CONSUL_CAPATH"),
		Cert: file("CONSUL_CLIENT_CERT"), Key: file("CONSUL_CLIENT_KEY"), ServerName: os.Getenv("CONSUL_TLS_SERVER_NAME"),
	}
}

// Client returns a client of the agent, after it has checked all files. It does
// not connect. The caller closes the client.
func (c Config) Client() (*api.Client, error) {
	cfg := api.ClientConfig{Addr: c.Addr, Token: c.Token, Username: c.Username, Password: c.Password}
	if c.TLS && cfg.Addr != "" && !strings.Contains(cfg.Addr, "://") {
		cfg.Addr = "https://" + cfg.Addr
	}
	if f := c.TokenFile; f.Path != "" && c.Token == "" {
		b, err := os.ReadFile(f.Path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Setting, err)
		}
		if strings.TrimSpace(string(b)) == "" {
			return nil, fmt.Errorf("%s: %s is empty; write the secret id of a token to it", f.Setting, f.Path)
		}
		cfg.TokenFile = f.Path
	}
	if strings.HasPrefix(cfg.Addr, "https://") {
		var err error
		if cfg.TLS, err = c.tls(); err != nil {
			return nil, err
		}
	}
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return client, nil
}

// tls returns the TLS configuration.
func (c Config) tls() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.ServerName, InsecureSkipVerify: c.SkipVerify}
	var err error
	if cfg.RootCAs, err = c.roots(); err != nil {
		return nil, err
	}
	switch {
	case c.Cert.Path == "" && c.Key.Path == "":
		return cfg, nil
	case c.Cert.Path == "" || c.Key.Path == "":
		return nil, fmt.Errorf("%s and %s: one is set without the other; set both", c.Cert.Setting, c.Key.Setting)
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Cert.Path, c.Key.Path)
		if err != nil {
			return nil, fmt.Errorf("%s %s and %s %s: %w", c.Cert.Setting, c.Cert.Path, c.Key.Setting, c.Key.Path, err)
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

// roots returns the certificates of CA or CADir, or nil for those of the system.
func (c Config) roots() (*x509.CertPool, error) {
	setting, paths := c.CA.Setting, []string{c.CA.Path}
	if c.CA.Path == "" {
		if c.CADir.Path == "" {
			return nil, nil
		}
		setting = c.CADir.Setting
		var err error
		if paths, err = filepath.Glob(filepath.Join(c.CADir.Path, "*")); err != nil {
			return nil, fmt.Errorf("%s: %w", setting, err)
		}
		if len(paths) == 0 {
			return nil, fmt.Errorf("%s: %s has no files", setting, c.CADir.Path)
		}
	}
	pool := x509.NewCertPool()
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", setting, err)
		}
		certs, err := tlsutil.ParseCerts(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", setting, path, err)
		}
		for _, cert := range certs {
			pool.AddCert(cert)
		}
	}
	return pool, nil
}

// Remedies are the remedies in errors of an agent.
type Remedies struct {
	Token   string // for a missing or insufficient token
	Connect string // for an agent that does not respond
}

// Explain adds a remedy to an error of an agent.
func (r Remedies) Explain(err error) error {
	switch {
	case api.IsStatus(err, 403), api.IsStatus(err, 401):
		return fmt.Errorf("%w; %s", err, r.Token)
	case api.IsStatus(err, 429):
		return fmt.Errorf("%w; raise limits.http_max_conns_per_client or limits.request_limits of the agent", err)
	}
	if e, ok := errors.AsType[*api.UnreachableError](err); ok {
		return fmt.Errorf("no Consul agent answers at %s: %s; %s", e.Addr, tlsutil.DescribeError(e.Err), r.Connect)
	}
	return err
}
