// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

func newTLSCSR() *cobra.Command {
	f := certFlags{roles: make([]bool, len(certRoles))}
	c := &cobra.Command{
		Use:   "csr",
		Short: "Create a key and a certificate request in the current directory",
		Long: `Create a private key and a certificate request (PKCS #10) in the current directory:
<dc>-<role>-<domain>-<i>.csr and <dc>-<role>-<domain>-<i>-key.pem, with the first
unused i. Existing files are not overwritten. The key stays on this machine. The
request goes to the owner of the CA, who signs it with "wanfed tls sign", or to
another PKI. The names are those of "wanfed tls cert create".`,
		Example: `  wanfed tls csr --server --datacenter dc2 --node srv1
  wanfed tls csr --gateway --datacenter dc2 --node gw1 --additional-ipaddress 203.0.113.7`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			name, err := f.check(cmd)
			if err != nil {
				return err
			}
			p, err := tlsutil.CreateCSR(f.req)
			if err != nil {
				return err
			}
			csr, key, err := p.SaveRequest(f.prefix(name))
			if err != nil {
				return err
			}
			width := max(len(csr), len(key))
			fmt.Fprintf(cmd.OutOrStdout(), "saved %-*s  sign it with: wanfed tls sign\n", width, csr)
			fmt.Fprintf(cmd.OutOrStdout(), "saved %-*s  secret: it stays on this machine\n", width, key)
			return nil
		},
	}
	f.addNames(c)
	return c
}

func newTLSSign() *cobra.Command {
	f := certFlags{roles: make([]bool, len(certRoles))}
	f.caFlags = caFlags{domain: &f.req.Domain, dc: &f.req.DC, ca: &f.req.CA}
	c := &cobra.Command{
		Use:   "sign FILE",
		Short: "Sign a certificate request",
		Long: `Sign a certificate request, such as that of "wanfed tls csr", with a CA. The
certificate is saved in the current directory, with the name of the file and the
extension .pem. An existing file is not overwritten.

The flags decide the role and the names of the certificate, as in "wanfed tls cert
create". A request with another name is refused, and so is one whose signature is
wrong. The machine with the CA of a datacenter that wanfed init or wanfed join has
created has it in the directory server/ca of the data directory.`,
		Example: `  wanfed tls sign dc2-server-wanfed-0.csr --server --datacenter dc2 --node srv1
  wanfed tls sign request.csr --gateway --datacenter dc1 --node gw1 \
    --ca-file /var/lib/wanfed/server/ca/dc.pem --ca-key-file /var/lib/wanfed/server/ca/dc-key.pem`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.sign(cmd, args[0]) },
	}
	f.addNames(c)
	f.addDays(c)
	f.add(c)
	return c
}

// prefix returns the beginning of the names of new files. name is that of the
// role.
func (f *certFlags) prefix(name string) string {
	return fmt.Sprintf("%s-%s-%s", f.req.DC, name, strings.ToLower(f.req.Domain))
}

func (f *certFlags) sign(cmd *cobra.Command, file string) error {
	if _, err := f.check(cmd); err != nil {
		return err
	}
	if err := f.read(); err != nil {
		return err
	}
	text, err := settings.ReadFile(file, maxPEM)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("file %s does not exist; check the path", file)
	}
	if err != nil {
		return err
	}
	cert, err := tlsutil.SignCSR(text, f.req)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	base := filepath.Base(file)
	path := strings.TrimSuffix(base, filepath.Ext(base)) + ".pem"
	if err := tlsutil.SaveCert(path, cert); err != nil {
		return err
	}
	certs, err := tlsutil.ParseCerts(cert)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "saved %s  valid until %s\n", path, certs[0].NotAfter.UTC().Format(time.DateOnly))
	return f.printExpiry(cmd.OutOrStdout(), tlsutil.KeyPair{Cert: cert})
}
