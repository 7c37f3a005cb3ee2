// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/tlsutil"
)

// certFlags are what the command line of "tls cert create" says.
type certFlags struct {
	roles         [4]bool // in the order of tlsutil.Roles
	req           tlsutil.CertRequest
	ips           []string
	caFile, caKey string
}

func newTLSCertCreate() *cobra.Command {
	var f certFlags
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a certificate in the current folder",
		Long: `Make a certificate and its key in the current folder, signed by a CA that "wanfed tls ca create" made:
<dc>-<kind>-<domain>-<i>.pem and <dc>-<kind>-<domain>-<i>-key.pem, with the first i that is free.
Files that exist are never overwritten.

Its names are <node>.<kind>.<dc>.<domain>, <kind>.<dc>.<domain>, localhost, 127.0.0.1 and ::1, and the
additional ones. Without --days it is valid for 365 days, or until its CA expires if that is sooner.`,
		Example: `  wanfed tls cert create --server --dc dc2 --node srv1
  wanfed tls cert create --gateway --dc dc2 --node gw1 --additional-ipaddress 203.0.113.7
  wanfed tls cert create --cli --dc dc2 --domain example.net --ca ca.pem --key ca-key.pem`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.create(cmd) },
	}
	fl := c.Flags()
	for i, about := range []string{"a server's certificate", "a gateway's certificate", "a client's certificate: it may read",
		"an operator's certificate"} {
		fl.BoolVar(&f.roles[i], string(tlsutil.Roles[i]), false, about)
	}
	fl.StringVar(&f.req.DC, "dc", "", "datacenter (required)")
	fl.StringVar(&f.req.Node, "node", "", `node (required for --server and --gateway; default "client" or "cli" for the others)`)
	fl.StringVar(&f.req.Domain, "domain", tlsutil.DefaultDomain, "domain of names on the wire")
	fl.IntVar(&f.req.Days, "days", 0, "days until the certificate expires; an error if the CA expires sooner")
	fl.StringSliceVar(&f.req.DNSNames, "additional-dnsname", nil, "additional DNS name; may be given several times")
	fl.StringSliceVar(&f.ips, "additional-ipaddress", nil, "additional IP address; may be given several times")
	fl.StringVar(&f.caFile, "ca", "", "the CA's certificate (default <domain>-agent-ca.pem)")
	fl.StringVar(&f.caKey, "key", "", "the CA's key (default <domain>-agent-ca-key.pem)")
	return c
}

func (f *certFlags) create(cmd *cobra.Command) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	if err := f.readCA(); err != nil {
		return err
	}
	p, err := tlsutil.CreateCert(f.req)
	if err != nil {
		return err
	}
	cert, key, err := p.SaveNumbered(fmt.Sprintf("%s-%s-%s", f.req.DC, f.req.Role, strings.ToLower(f.req.Domain)))
	if err != nil {
		return err
	}
	if err := printSaved(cmd.OutOrStdout(), p, cert, key, "keep it secret: it is this "+whose(f.req.Role)+"'s own"); err != nil {
		return err
	}
	return f.noteEnd(cmd.OutOrStdout(), p)
}

// whose returns what people call a role.
func whose(r tlsutil.Role) string {
	if r == tlsutil.RoleOperator {
		return "operator"
	}
	return string(r)
}

// noteEnd says when the certificate got less than the usual time because its CA expires.
func (f *certFlags) noteEnd(w io.Writer, p tlsutil.KeyPair) error {
	certs, err := tlsutil.ParseCerts(p.Cert)
	if err != nil {
		return err
	}
	if left := time.Until(certs[0].NotAfter); f.req.Days == 0 && left < (tlsutil.DefaultCertDays-1)*24*time.Hour {
		fmt.Fprintf(w, "note: it is valid for %d days, not the usual %d, because its CA expires then\n",
			int(left.Hours()/24), tlsutil.DefaultCertDays)
	}
	return nil
}

// check turns the flags into the request; what is wrong with them is a usage error.
func (f *certFlags) check(cmd *cobra.Command) error {
	for i, given := range f.roles {
		switch {
		case !given:
		case f.req.Role != "":
			return usagef("--%s and --%s exclude each other; make two certificates", f.req.Role, tlsutil.Roles[i])
		default:
			f.req.Role = tlsutil.Roles[i]
		}
	}
	switch {
	case f.req.Role == "":
		return usagef("say whose certificate it is: --server, --gateway, --client or --cli")
	case f.req.DC == "":
		return usagef("say of which datacenter: --dc DC")
	case f.req.Node == "" && (f.req.Role == tlsutil.RoleServer || f.req.Role == tlsutil.RoleGateway):
		return usagef("say of which %s: --node NODE", f.req.Role)
	case (f.caFile == "") != (f.caKey == ""):
		return usagef("give --ca and --key together: they belong together")
	}
	for _, s := range f.ips {
		ip := net.ParseIP(s)
		if ip == nil {
			return usagef("--additional-ipaddress: %q is no IP address", s)
		}
		f.req.IPs = append(f.req.IPs, ip)
	}
	if err := checkTLSFlags(cmd, f.req.Domain, f.req.Days); err != nil {
		return err
	}
	if err := f.req.Validate(); err != nil {
		return usageError{err}
	}
	return nil
}

// caFiles are the names that "tls ca create" gives.
func caFiles(domain string) (cert, key string) {
	domain = strings.ToLower(domain)
	return domain + "-agent-ca.pem", domain + "-agent-ca-key.pem"
}

func (f *certFlags) readCA() error {
	hint := ""
	if f.caFile == "" {
		f.caFile, f.caKey = caFiles(f.req.Domain)
		flag := ""
		if f.req.Domain != tlsutil.DefaultDomain {
			flag = " --domain " + f.req.Domain
		}
		hint = fmt.Sprintf("; make one with: wanfed tls ca create%s, or name one with --ca and --key", flag)
	}
	for _, part := range []struct {
		what, path string
		to         *[]byte
	}{{"certificate", f.caFile, &f.req.CA.Cert}, {"key", f.caKey, &f.req.CA.Key}} {
		b, err := readBounded(part.path, maxPEM)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("CA %s %s does not exist%s", part.what, part.path, hint)
		}
		if err != nil {
			return fmt.Errorf("read CA %s: %w", part.what, err)
		}
		*part.to = b
	}
	return nil
}
