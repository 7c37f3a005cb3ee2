// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// maxPEM is the maximum size of a PEM file, in bytes.
const maxPEM = 4 << 20

func newTLS() *cobra.Command {
	ca := newGroup("ca", "Create and replace CAs", newTLSCACreate(), newTLSCARotate(), newTLSCAStatus())
	cert := newGroup("cert", "Create certificates", newTLSCertCreate())
	ca.Example = `  wanfed tls ca create`
	cert.Example = `  wanfed tls cert create --server --datacenter dc1 --node srv1`
	c := newGroup("tls", "Create, renew, revoke and inspect certificates", ca, cert, newTLSCSR(), newTLSSign(),
		newTLSRenew(), newTLSStatus(), newTLSRevoke(), newTLSPublish(), newTLSInspect())
	c.Long = `Create, renew, revoke and inspect certificates.

The name in the certificate of a server or gateway is its identity:
<node>.server.<dc>.<domain> or <node>.gateway.<dc>.<domain>. One CA signs a CA for
each datacenter, which signs the certificates of that datacenter. Any CA whose
certificates have these names can be used.`
	c.Example = `  wanfed tls ca create
  wanfed tls ca create --dc dc1
  wanfed tls cert create --server --datacenter dc1 --node srv1
  wanfed tls inspect dc1-server-wanfed-0.pem --ca-file wanfed-agent-ca.pem`
	return c
}

func newTLSCACreate() *cobra.Command {
	var r tlsutil.CARequest
	var constrain bool
	f := caFlags{domain: &r.Domain, ca: &r.Parent}
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a CA in the current directory",
		Long: `Create a CA in the current directory. Existing files are not overwritten.

Without --dc: <domain>-agent-ca.pem and <domain>-agent-ca-key.pem. Each machine
of all datacenters needs the first file. The second file signs certificates and
CAs of datacenters: keep it offline.

With --dc: <dc>-<domain>-ca.pem and <dc>-<domain>-ca-key.pem, signed by the CA
of --ca-file. An owner of these two files can create certificates of the
datacenter, and of no other. "wanfed tls cert create" uses them. The machines
need only the CA of all datacenters.

With --ca-passphrase-file, the new key is encrypted with that passphrase. Commands
that sign with it need the same flag.`,
		Example: `  wanfed tls ca create
  wanfed tls ca create --dc dc3
  wanfed tls ca create --dc dc3 --permit 10.3.0.0/16 --permit dc3.example.com
  wanfed tls ca create --domain example.net --days 3650
  wanfed tls ca create --ca-passphrase-file passphrase`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTLSFlags(cmd, r.Domain, r.Days); err != nil {
				return err
			}
			r.Unconstrained = !constrain
			if err := r.Validate(); err != nil {
				return usageError{err}
			}
			cert, key := caFiles(r.Domain)
			if r.DC != "" {
				if err := f.read(); err != nil {
					return err
				}
				cert, key = dcCAFiles(r.DC, r.Domain)
			} else if f.caFile != "" || f.caKeyFile != "" {
				return usagef("--ca-file and --ca-key-file need --dc")
			}
			p, err := tlsutil.CreateCA(r)
			if err != nil {
				return err
			}
			if f.passphraseFile != "" {
				if p.Key, err = f.keys().Encrypt(p.Key); err != nil {
					return fmt.Errorf("--ca-passphrase-file: %w", err)
				}
			}
			if err := p.Save(cert, key); err != nil {
				return err
			}
			return printSaved(cmd.OutOrStdout(), p, cert, key, "secret: it signs certificates")
		},
	}
	c.Flags().StringVar(&r.Domain, "domain", tlsutil.DefaultDomain, "domain of the names in certificates and SNI")
	c.Flags().StringVar(&r.DC, "dc", "", "`name` of the datacenter of the CA (default: all datacenters)")
	c.Flags().IntVar(&r.Days, "days", 0, "days until the CA expires (default: 1825, or until the CA that signs it expires)")
	c.Flags().BoolVar(&constrain, "name-constraint", true,
		"restrict the CA to names of the domain or datacenter, and localhost")
	c.Flags().StringSliceVar(&r.Permit, "permit", nil,
		"further DNS `domain`, or network (CIDR), that certificates may have; repeatable")
	f.add(c)
	return c
}

// caFlags are the flags of a CA that signs.
type caFlags struct {
	domain            *string
	dc                *string // whose CA is the default, if it exists; nil: none
	ca                *tlsutil.KeyPair
	caFile, caKeyFile string
	passphraseFile    string
}

func (f *caFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.caFile, "ca-file", "",
		"PEM `file` with the certificate of the CA that signs (default <domain>-agent-ca.pem)")
	c.Flags().StringVar(&f.caKeyFile, "ca-key-file", "",
		"PEM `file` with the private key of the CA that signs (default <domain>-agent-ca-key.pem)")
	c.Flags().StringVar(&f.passphraseFile, "ca-passphrase-file", "",
		"`file` (mode 0600) with the passphrase of an encrypted key of a CA (default: that of wanfed init, if there is one)")
}

// keys returns the keys of CAs, with the passphrase that the user has given.
func (f *caFlags) keys() *enroll.CAKeys {
	return enroll.NewCAKeys(enroll.Passphrase{File: f.passphraseFile})
}

// decrypt decrypts the key of the CA, if it is encrypted.
func (f *caFlags) decrypt() (err error) {
	keys := f.keys()
	if l, err := newLayout(""); err == nil && f.passphraseFile == "" {
		if _, err := os.Stat(l.passphrase()); err == nil {
			keys = enroll.NewCAKeys(enroll.Passphrase{File: l.passphrase()})
		}
	}
	if f.ca.Key, err = keys.Decrypt(f.ca.Key); err != nil {
		return fmt.Errorf("CA key %s %w", f.caKeyFile, err)
	}
	return nil
}

// caFiles returns the file names of "tls ca create".
func caFiles(domain string) (cert, key string) {
	domain = strings.ToLower(domain)
	return domain + "-agent-ca.pem", domain + "-agent-ca-key.pem"
}

// dcCAFiles returns the file names of "tls ca create --dc".
func dcCAFiles(dc, domain string) (cert, key string) {
	name := dc + "-" + strings.ToLower(domain) + "-ca"
	return name + ".pem", name + "-key.pem"
}

// checkTLSFlags refuses values that package tlsutil replaces by its defaults.
func checkTLSFlags(cmd *cobra.Command, domain string, days int) error {
	if domain == "" {
		return usagef("--domain is empty; omit it for %q", tlsutil.DefaultDomain)
	}
	if days == 0 && cmd.Flags().Changed("days") {
		return usagef("--days is 0: must be at least 1")
	}
	return nil
}

// printSaved prints the saved files and the expiry of the certificate.
func printSaved(w io.Writer, p tlsutil.KeyPair, cert, key, note string) error {
	certs, err := tlsutil.ParseCerts(p.Cert)
	if err != nil {
		return err
	}
	width := max(len(cert), len(key))
	fmt.Fprintf(w, "saved %-*s  valid until %s\n", width, cert, certs[0].NotAfter.UTC().Format(time.DateOnly))
	fmt.Fprintf(w, "saved %-*s  %s\n", width, key, note)
	return nil
}

// certRoles are the roles of certificates, with their flags.
var certRoles = []struct {
	role       tlsutil.Role
	flag, help string
}{
	{tlsutil.RoleServer, "server", "certificate of a server"},
	{tlsutil.RoleGateway, "gateway", "certificate of a gateway"},
	{tlsutil.RoleClient, "client", "certificate of a client, which may read"},
	{tlsutil.RoleOperator, "operator", "certificate of an operator, who may write"},
	{tlsutil.RoleSync, "sync", "certificate of a sync daemon, which writes tasks"},
	{tlsutil.RoleUser, "user", "certificate of a user, who may do what the policy of the name permits"},
}

// certFlags are the flags of "tls cert create".
type certFlags struct {
	roles []bool // in the order of certRoles
	req   tlsutil.CertRequest
	ips   []string
	caFlags
}

func newTLSCertCreate() *cobra.Command {
	f := certFlags{roles: make([]bool, len(certRoles))}
	f.caFlags = caFlags{domain: &f.req.Domain, dc: &f.req.DC, ca: &f.req.CA}
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a certificate in the current directory",
		Long: `Create a certificate and its private key in the current directory, signed by a CA
of "wanfed tls ca create": <dc>-<role>-<domain>-<i>.pem and
<dc>-<role>-<domain>-<i>-key.pem, with the first unused i. Existing files are not
overwritten.

The names in the certificate are <node>.<role>.<dc>.<domain>, <role>.<dc>.<domain>
and the additional names. The certificate of a server, which serves the HTTP API,
also has localhost, 127.0.0.1 and ::1. An operator has the role "cli" in names.
Without --days the certificate is valid for 365 days, or until its CA expires.

If the current directory has the CA of the datacenter (wanfed tls ca create
--dc), that CA signs the certificate, and the file of the certificate also has
that CA.`,
		Example: `  wanfed tls cert create --server --datacenter dc2 --node srv1
  wanfed tls cert create --gateway --datacenter dc2 --node gw1 --additional-ipaddress 203.0.113.7
  wanfed tls cert create --operator --datacenter dc2 --ca-file ca.pem --ca-key-file ca-key.pem`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.create(cmd) },
	}
	f.addNames(c)
	f.addDays(c)
	f.add(c)
	return c
}

// addDays adds the flag of the validity.
func (f *certFlags) addDays(c *cobra.Command) {
	c.Flags().IntVar(&f.req.Days, "days", 0, "days until the certificate expires (default: 365, or until the CA expires)")
}

// addNames adds the flags of the role and the names.
func (f *certFlags) addNames(c *cobra.Command) {
	fl := c.Flags()
	for i, r := range certRoles {
		fl.BoolVar(&f.roles[i], r.flag, false, r.help)
	}
	fl.StringVar(&f.req.DC, "datacenter", "", "`name` of the datacenter (required)")
	fl.StringVar(&f.req.Node, "node", "",
		"`name` of the node (required for --server, --gateway and --user; default \"client\" or \"cli\")")
	fl.StringVar(&f.req.Domain, "domain", tlsutil.DefaultDomain, "domain of the names in certificates and SNI")
	fl.StringSliceVar(&f.req.DNSNames, "additional-dnsname", nil, "additional DNS name; repeatable")
	fl.StringSliceVar(&f.ips, "additional-ipaddress", nil, "additional IP address; repeatable")
}

func (f *certFlags) create(cmd *cobra.Command) error {
	name, err := f.check(cmd)
	if err != nil {
		return err
	}
	if err := f.read(); err != nil {
		return err
	}
	p, err := tlsutil.CreateCert(f.req)
	if err != nil {
		return err
	}
	cert, key, err := p.SaveNumbered(f.prefix(name))
	if err != nil {
		return err
	}
	owner := name
	if f.req.Role == tlsutil.RoleSync {
		owner = "sync daemon"
	}
	if err := printSaved(cmd.OutOrStdout(), p, cert, key, "secret: only for this "+owner); err != nil {
		return err
	}
	return f.printExpiry(cmd.OutOrStdout(), p)
}

// printExpiry prints a note if the certificate expires early because its CA
// does.
func (f *certFlags) printExpiry(w io.Writer, p tlsutil.KeyPair) error {
	certs, err := tlsutil.ParseCerts(p.Cert)
	if err != nil {
		return err
	}
	if left := time.Until(certs[0].NotAfter); f.req.Days == 0 && left < (tlsutil.DefaultCertDays-1)*24*time.Hour {
		fmt.Fprintf(w, "note: valid for %d days instead of %d, because the CA expires then\n",
			int(left.Hours()/24), tlsutil.DefaultCertDays)
	}
	return nil
}

// check completes the request from the flags and returns the name of the role.
// Its errors are usage errors.
func (f *certFlags) check(cmd *cobra.Command) (name string, err error) {
	for i, given := range f.roles {
		switch {
		case given && name != "":
			return "", usagef("--%s and --%s exclude each other; create two certificates", name, certRoles[i].flag)
		case given:
			name, f.req.Role = certRoles[i].flag, certRoles[i].role
		}
	}
	switch {
	case name == "":
		return "", usagef("a role is required: --server, --gateway, --client, --operator, --sync or --user")
	case f.req.DC == "":
		return "", usagef("--datacenter is required")
	case f.req.Node == "" && (slices.Contains([]tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway, tlsutil.RoleUser}, f.req.Role)):
		return "", usagef("--node is required for --%s", name)
	}
	for _, s := range f.ips {
		ip := net.ParseIP(s)
		if ip == nil {
			return "", usagef("--additional-ipaddress: %q is not an IP address", s)
		}
		f.req.IPs = append(f.req.IPs, ip)
	}
	if err := checkTLSFlags(cmd, f.req.Domain, f.req.Days); err != nil {
		return "", err
	}
	if err := f.req.Validate(); err != nil {
		return "", usageError{err}
	}
	return name, nil
}

// read reads the files of the CA.
func (f *caFlags) read() error {
	hint := ""
	if (f.caFile == "") != (f.caKeyFile == "") {
		return usagef("--ca-file and --ca-key-file need each other")
	}
	if f.caFile == "" {
		f.caFile, f.caKeyFile = caFiles(*f.domain)
		if f.dc != nil {
			cert, key := dcCAFiles(*f.dc, *f.domain)
			if _, err := os.Stat(cert); err == nil {
				f.caFile, f.caKeyFile = cert, key
			}
		}
		domain := ""
		if *f.domain != tlsutil.DefaultDomain {
			domain = " --domain " + *f.domain
		}
		hint = fmt.Sprintf("; create one with: wanfed tls ca create%s, or name one with --ca-file and --ca-key-file",
			domain)
	}
	for _, file := range []struct {
		kind, path string
		content    *[]byte
	}{{"certificate", f.caFile, &f.ca.Cert}, {"key", f.caKeyFile, &f.ca.Key}} {
		var err error
		*file.content, err = settings.ReadFile(file.path, maxPEM)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("CA %s %s does not exist%s", file.kind, file.path, hint)
		}
		if err != nil {
			return fmt.Errorf("read CA %s: %w", file.kind, err)
		}
	}
	return f.decrypt()
}
