// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/apply"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// revokeFlags are the flags of "tls revoke".
type revokeFlags struct {
	req            tlsutil.RevokeRequest
	serials        []string
	before, domain string
	caFlags
}

func newTLSRevoke() *cobra.Command {
	var f revokeFlags
	f.caFlags = caFlags{domain: &f.domain, ca: &f.req.CA}
	c := &cobra.Command{
		Use:   "revoke [FILE...]",
		Short: "Revoke certificates",
		Long: `Add certificates to the revocation list of the CA that signed them. The list is a
file next to the file of the CA, with the extension .crl. It is created if it
does not exist. Each change has a higher number.

A certificate is revoked by its file, by its serial number, or by a DNS name in
it. A name revokes the certificates that were created before --before. It may be
that of one peer (srv1.server.dc2.wanfed) or of all peers of a role and a
datacenter (server.dc2.wanfed). By a name, a CA also revokes certificates of the
CAs of datacenters that it signed.

The command needs the key of the CA and no network. "wanfed tls publish" sends
the list to all datacenters. On a machine that does not receive it, copy the list
next to the CA file.`,
		Example: `  wanfed tls revoke dc2-server-wanfed-0.pem
  wanfed tls revoke --serial 562c3ed4881d537aad44c1f0643d3518 --ca-file dc2-wanfed-ca.pem --ca-key-file dc2-wanfed-ca-key.pem
  wanfed tls revoke --name srv1.server.dc2.wanfed --before 2026-05-01T12:00:00Z
  wanfed tls revoke dc3-wanfed-ca.pem               # all certificates of dc3`,
		RunE: func(cmd *cobra.Command, files []string) error { return f.revoke(cmd, files) },
	}
	fl := c.Flags()
	fl.StringSliceVar(&f.serials, "serial", nil, "serial `number` in hexadecimal; repeatable")
	fl.StringSliceVar(&f.req.Names, "name", nil, "DNS `name` in certificates; repeatable")
	fl.StringVar(&f.before, "before", "",
		"`time` (RFC 3339) before which the certificates of --name were created (default: now)")
	fl.StringVar(&f.domain, "domain", tlsutil.DefaultDomain, "domain of the names in certificates and SNI")
	f.add(c)
	return c
}

func (f *revokeFlags) revoke(cmd *cobra.Command, files []string) error {
	if len(files)+len(f.serials)+len(f.req.Names) == 0 {
		return usagef("nothing to revoke: name the file of a certificate, or use --serial or --name")
	}
	if f.before != "" {
		t, err := time.Parse(time.RFC3339, f.before)
		if err != nil || len(f.req.Names) == 0 {
			return usagef("--before needs --name and a time like 2026-05-01T12:00:00Z, not %q", f.before)
		}
		f.req.Before = t
	}
	for _, s := range f.serials {
		n, ok := new(big.Int).SetString(strings.ReplaceAll(s, ":", ""), 16)
		if !ok || n.Sign() <= 0 {
			return usagef("--serial %q is not a hexadecimal number", s)
		}
		f.req.Serials = append(f.req.Serials, n)
	}
	if err := f.read(); err != nil {
		return err
	}
	cas, err := tlsutil.ParseCerts(f.req.CA.Cert)
	if err != nil {
		return fmt.Errorf("file %s: %w", f.caFile, err)
	}
	for _, file := range files {
		certs, err := readCerts(file)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return certs[0].CheckSignatureFrom(ca) == nil }) {
			return fmt.Errorf("%s is not signed by %s: use --ca-file with the CA that signed it (%s)", file, f.caFile,
				certs[0].Issuer)
		}
		f.req.Serials = append(f.req.Serials, certs[0].SerialNumber)
	}
	path := tlsutil.RevocationFile(f.caFile)
	f.req.Old, err = settings.ReadFile(path, maxPEM)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := tlsutil.Revoke(f.req)
	if err != nil {
		return fmt.Errorf("file %s: %w", path, err)
	}
	if err := atomicfile.WriteFile(path, l.PEM(), 0o644); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "saved %s  list %v: %d certificates, %d names\n", path, l.Number, len(l.Serials), len(l.Names))
	return nil
}

func newTLSPublish() *cobra.Command {
	return addResourceWriteFlags(&cobra.Command{
		Use:   "publish FILE",
		Short: "Send a revocation list to all datacenters",
		Long: `Send the revocation list of "wanfed tls revoke" to all datacenters, as a federated
resource (tls/v1/RevocationList). Within seconds, all servers and gateways refuse
the certificates on the list and close their open connections. A list with a
lower number than the one in force is refused.`,
		Example: `  wanfed tls publish wanfed-agent-ca.crl`,
		Args:    files,
	}, func(ctx context.Context, args []string, cl *resourceClient, out output.Printer) error {
		var resources []api.Resource
		var positions []string
		for _, file := range args {
			lists, err := readRevocationLists(file)
			if err != nil {
				return err
			}
			for _, l := range lists {
				data, err := json.Marshal(map[string]string{"pem": string(l.PEM())})
				if err != nil {
					return err
				}
				positions = append(positions, file)
				resources = append(resources, api.Resource{ID: api.ResourceID{
					Type: api.ResourceTypeName{Group: "tls", GroupVersion: "v1", Kind: "RevocationList"}, Name: l.ID(),
				}, Data: data})
			}
		}
		plan, err := apply.Check(ctx, cl.Client, cl.opts.Datacenter, resources)
		if err != nil {
			return refusals(positions, err)
		}
		return runPlan(ctx, out, positions, plan, false)
	})
}

// readRevocationLists reads the lists of a file that has the certificates of
// their CAs. The server decides whether it trusts the CAs.
func readRevocationLists(file string) ([]*tlsutil.RevocationList, error) {
	b, err := settings.ReadFile(file, maxPEM)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("file %s does not exist; check the path", file)
	}
	if err != nil {
		return nil, err
	}
	cas, err := tlsutil.ParseCerts(b)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", file, err)
	}
	lists, err := tlsutil.ParseRevocationLists(b, cas, time.Now())
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", file, err)
	}
	return lists, nil
}

// printRevocationList prints a list as "tls inspect" does.
func printRevocationList(out output.Printer, l tlsutil.RevocationInspection) error {
	fmt.Fprintln(out.W, output.Printable(l.File))
	rows := [][]string{
		{"  Revocation list", l.Number}, {"  Issuer", l.Issuer}, {"  ID", l.ID},
		{"  Created", l.Created.Format(time.RFC3339)},
	}
	for _, s := range l.Serials {
		rows = append(rows, []string{"  Serial", s})
	}
	for _, n := range l.Names {
		rows = append(rows, []string{"  Name", fmt.Sprintf("%s, created before %s", n.Name, n.Before.Format(time.RFC3339))})
	}
	return output.WriteFields(out.W, rows)
}
