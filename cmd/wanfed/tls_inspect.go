// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// inspector runs "tls inspect".
type inspector struct {
	output.Printer
	caFile, domain string
	cas            []*x509.Certificate
}

func newTLSInspect() *cobra.Command {
	var in inspector
	c := &cobra.Command{
		Use:   "inspect FILE...",
		Short: "Show the certificates and revocation lists of PEM files",
		Long: `Show the certificates of PEM files: role, datacenter, node, names, expiry, issuer
and usage. Of a file with the extension .crl, show the revocation lists: number,
issuer, revoked serial numbers and names.

With --ca-file the first certificate of each file is verified as in a handshake,
with the other certificates of the file as intermediates. The exit status is 1 if
a verification fails.`,
		Example: `  wanfed tls inspect dc2-server-wanfed-0.pem
  wanfed tls inspect *.pem --ca-file wanfed-agent-ca.pem
  wanfed tls inspect --output json dc2-server-wanfed-0.pem`,
		Args: files,
	}
	printer := output.AddFlag(c)
	c.Flags().StringVar(&in.caFile, "ca-file", "", "PEM `file` with the CA certificates to verify against")
	c.Flags().StringVar(&in.domain, "domain", "",
		"domain of the names in certificates (default: derived from the names)")
	c.RunE = func(cmd *cobra.Command, files []string) error {
		if err := tlsutil.CheckDomain(in.domain); in.domain != "" && err != nil {
			return usagef("--domain: %w", err)
		}
		in.Printer = printer()
		return in.inspect(files, time.Now())
	}
	return c
}

// inspect prints all readable files, and then returns all errors.
func (in *inspector) inspect(files []string, now time.Time) error {
	if in.caFile != "" {
		var err error
		if in.cas, err = readCerts(in.caFile); err != nil {
			return err
		}
	}
	all := []tlsutil.Inspection{} // not nil, which JSON encodes as null
	var errs []string
	var lists []tlsutil.RevocationInspection
	for _, file := range files {
		if filepath.Ext(file) == ".crl" {
			found, err := readRevocationLists(file)
			if err != nil {
				errs = append(errs, err.Error())
			}
			for _, l := range found {
				lists = append(lists, tlsutil.InspectList(file, l))
			}
			continue
		}
		certs, err := readCerts(file)
		if err != nil {
			errs = append(errs, err.Error())
			continue
		}
		inspected, err := tlsutil.Inspect(file, certs, in.cas, in.domain, now)
		if err != nil {
			errs = append(errs, fmt.Sprintf("%s does not verify against %s", file, in.caFile))
		}
		all = append(all, inspected...)
	}
	var shown any = all
	if lists != nil {
		shown = struct {
			Certificates []tlsutil.Inspection           `json:"certificates"`
			Lists        []tlsutil.RevocationInspection `json:"revocation_lists"`
		}{all, lists}
	}
	if err := in.Print(shown, func() error { return in.printAll(all, lists) }); err != nil {
		return err
	}
	if len(errs) > 0 {
		return errors.New(strings.Join(errs, "; "))
	}
	return nil
}

func readCerts(file string) ([]*x509.Certificate, error) {
	b, err := settings.ReadFile(file, maxPEM)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("file %s does not exist; check the path", file)
	}
	if err != nil {
		return nil, err
	}
	certs, err := tlsutil.ParseCerts(b)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", file, err)
	}
	return certs, nil
}

func (in *inspector) printAll(all []tlsutil.Inspection, lists []tlsutil.RevocationInspection) error {
	w := in.W
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, output.Printable(s.File))
		if s.Of > 1 {
			fmt.Fprintf(w, " (%d of %d)", s.Position, s.Of)
		}
		fmt.Fprintln(w)
		if err := output.WriteFields(w, inspectionRows(s, in.caFile)); err != nil {
			return err
		}
	}
	for i, l := range lists {
		if i+len(all) > 0 {
			fmt.Fprintln(w)
		}
		if err := printRevocationList(in.Printer, l); err != nil {
			return err
		}
	}
	return nil
}

// inspectionRows returns the fields of s.
func inspectionRows(s tlsutil.Inspection, caFile string) [][]string {
	var rows [][]string
	add := func(key string, values ...string) {
		rows = append(rows, []string{"  " + key, strings.Join(values, ", ")})
	}
	switch {
	case s.Role != "":
		add("Role", s.Role.String())
		add("Datacenter", s.DC)
		add("Node", s.Node)
		add("Domain", s.Domain)
	case s.CA && s.NoPeer == "":
		add("Role", "CA")
	default:
		add("Role", "none: "+s.NoPeer)
	}
	if len(s.Permitted) > 0 {
		add("Only names in", s.Permitted...)
	}
	if len(s.DNSNames)+len(s.IPs) > 0 {
		add("Names", slices.Concat(s.DNSNames, s.IPs)...)
	}
	from, to := s.NotBefore.Format(time.RFC3339), s.NotAfter.Format(time.RFC3339)
	add("Valid", fmt.Sprintf("%s to %s (%s)", from, to, validity(s)))
	add("Subject", s.Subject)
	if s.SelfSigned {
		add("Issuer", "itself")
	} else {
		add("Issuer", s.Issuer)
	}
	add("Serial", s.Serial)
	add("Usage", s.Usage...)
	switch {
	case s.Verified == nil:
	case *s.Verified:
		add("Verified", "yes, against "+caFile)
	default:
		add("Verified", "NO, against "+caFile+": "+s.VerifyError)
	}
	return rows
}

func validity(s tlsutil.Inspection) string {
	// DaysLeft is rounded down, so it is -1 on the first day after the expiry.
	switch {
	case s.Expired && s.DaysLeft < -1:
		return fmt.Sprintf("EXPIRED %d days ago", -s.DaysLeft-1)
	case s.Expired:
		return "EXPIRED"
	case s.NotYetValid:
		return "NOT YET VALID"
	}
	return fmt.Sprintf("%d days left", s.DaysLeft)
}
