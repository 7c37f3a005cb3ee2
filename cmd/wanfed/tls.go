// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/tlsutil"
)

func newTLS() *cobra.Command {
	ca, cert := newGroup("ca", "Make a CA", newTLSCACreate()), newGroup("cert", "Make certificates", newTLSCertCreate())
	ca.Example = `  wanfed tls ca create`
	cert.Example = `  wanfed tls cert create --server --dc dc1 --node srv1`
	c := newGroup("tls", "Make and look at certificates", ca, cert, newTLSInspect())
	c.Long = `Make and look at certificates.

Every server and gateway needs a certificate whose names say who it is:
<node>.server.<dc>.<domain> or <node>.gateway.<dc>.<domain>. One CA, made once,
signs those of all datacenters. Any CA will do whose certificates have these names.`
	c.Example = `  wanfed tls ca create
  wanfed tls cert create --server --dc dc1 --node srv1
  wanfed tls cert create --gateway --dc dc1 --node gw1
  wanfed tls inspect dc1-server-wanfed-0.pem --ca wanfed-agent-ca.pem`
	return c
}

func newTLSCACreate() *cobra.Command {
	var r tlsutil.CARequest
	c := &cobra.Command{
		Use:   "create",
		Short: "Make a CA in the current folder",
		Long: `Make a CA: <domain>-agent-ca.pem and <domain>-agent-ca-key.pem in the current folder.

Each machine needs the first file. The second makes certificates: keep it off them.
Files that exist are never overwritten.`,
		Example: `  wanfed tls ca create
  wanfed tls ca create --domain example.net --days 3650 --name-constraint`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTLSFlags(cmd, r.Domain, r.Days); err != nil {
				return err
			}
			if err := r.Validate(); err != nil {
				return usageError{err}
			}
			p, err := tlsutil.CreateCA(r)
			if err != nil {
				return err
			}
			cert, key := caFiles(r.Domain)
			if err := p.Save(cert, key); err != nil {
				return err
			}
			return printSaved(cmd.OutOrStdout(), p, cert, key, "keep it secret: it makes certificates")
		},
	}
	c.Flags().StringVar(&r.Domain, "domain", tlsutil.DefaultDomain, "domain of names on the wire")
	c.Flags().IntVar(&r.Days, "days", tlsutil.DefaultCADays, "days until the CA expires")
	c.Flags().BoolVar(&r.NameConstraint, "name-constraint", false,
		"restrict the CA to DNS names of the domain, and localhost; IP addresses stay free")
	return c
}

// checkTLSFlags refuses what the library takes for its default.
func checkTLSFlags(cmd *cobra.Command, domain string, days int) error {
	if domain == "" {
		return usagef("--domain is empty; leave it out for %q", tlsutil.DefaultDomain)
	}
	if days == 0 && cmd.Flags().Changed("days") {
		return usagef("--days 0 is no time to be valid; ask for at least 1")
	}
	return nil
}

// printSaved says what was saved, and until when it is valid.
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
