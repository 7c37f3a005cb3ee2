// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/tlsutil"
)

// inspected is one certificate of a file, as --format json shows it.
type inspected struct {
	File     string
	Position int // in the file, from 1
	Of       int // certificates in the file
	tlsutil.Description
	Verified    *bool  `json:",omitempty"` // only with --ca, of a file's first certificate
	VerifyError string `json:",omitempty"`
}

// inspector is what the command line of "tls inspect" says.
type inspector struct {
	printer
	caFile, domain string
	cas            []*x509.Certificate
}

func newTLSInspect() *cobra.Command {
	in := inspector{printer: printer{format: formatTable}}
	c := &cobra.Command{
		Use:   "inspect FILE...",
		Short: "Show whose certificates these are, their names, expiry and issuer",
		Long: `Show the certificates in PEM files: role, datacenter and node, names, expiry, issuer and usage.

With --ca each file's first certificate is verified as handshakes do it, through the file's other
certificates; exit status 1 says that one of them does not verify.`,
		Example: `  wanfed tls inspect dc2-server-wanfed-0.pem
  wanfed tls inspect *.pem --ca wanfed-agent-ca.pem
  wanfed tls inspect --format json dc2-server-wanfed-0.pem`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("say which files; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			if err := tlsutil.CheckDomain(in.domain); in.domain != "" && err != nil {
				return usagef("--domain: %w", err)
			}
			in.w = cmd.OutOrStdout()
			return in.inspect(files, time.Now())
		},
	}
	c.Flags().Var(&in.format, "format", "table or json")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&in.caFile, "ca", "", "verify against the CAs in this file")
	c.Flags().StringVar(&in.domain, "domain", "", "domain of names on the wire (default: what the names suggest)")
	return c
}

// inspect shows all files that it can and then returns what was wrong with any.
func (in *inspector) inspect(files []string, now time.Time) error {
	if in.caFile != "" {
		var err error
		if in.cas, err = readCerts(in.caFile); err != nil {
			return err
		}
	}
	all := []inspected{} // [] rather than null in JSON
	var faults []string
	for _, file := range files {
		certs, err := readCerts(file)
		if err != nil {
			faults = append(faults, err.Error())
			continue
		}
		for i, c := range certs {
			all = append(all, inspected{File: file, Position: i + 1, Of: len(certs), Description: tlsutil.Describe(c, in.domain, now)})
		}
		if in.cas == nil {
			continue
		}
		first, ok := &all[len(all)-len(certs)], true
		if err := tlsutil.Verify(certs, in.cas, in.domain, now); err != nil {
			ok, first.VerifyError = false, err.Error()
			faults = append(faults, fmt.Sprintf("%s does not verify against %s", file, in.caFile))
		}
		first.Verified = &ok
	}
	if err := in.print(all, func(w io.Writer) error { return in.tables(w, all) }); err != nil {
		return err
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

func readCerts(file string) ([]*x509.Certificate, error) {
	b, err := readBounded(file, maxPEM)
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

func (in *inspector) tables(w io.Writer, all []inspected) error {
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, printable(s.File))
		if s.Of > 1 {
			fmt.Fprintf(w, " (%d of %d)", s.Position, s.Of)
		}
		fmt.Fprintln(w)
		if err := writeTable(w, s.rows(in.caFile)); err != nil {
			return err
		}
	}
	return nil
}

// rows are what a table shows of s.
func (s inspected) rows(caFile string) [][]string {
	var rows [][]string
	row := func(key string, values ...string) {
		rows = append(rows, []string{"  " + key, strings.Join(values, ", ")})
	}
	switch {
	case s.Role != "":
		row("Role", string(s.Role))
		row("Datacenter", s.DC)
		row("Node", s.Node)
		row("Domain", s.Domain)
	case s.CA && s.NoPeer == "":
		row("Role", "CA")
	default:
		row("Role", "none: "+s.NoPeer)
	}
	if len(s.Permitted) > 0 {
		row("Only names in", s.Permitted...)
	}
	if len(s.DNSNames)+len(s.IPs) > 0 {
		row("Names", slices.Concat(s.DNSNames, s.IPs)...)
	}
	row("Valid", fmt.Sprintf("%s to %s (%s)", s.NotBefore.Format(time.RFC3339), s.NotAfter.Format(time.RFC3339), s.state()))
	row("Subject", s.Subject)
	if s.SelfSigned {
		row("Issuer", "itself")
	} else {
		row("Issuer", s.Issuer)
	}
	row("Serial", s.Serial)
	row("Usage", s.Usage...)
	switch {
	case s.Verified == nil:
	case *s.Verified:
		row("Verified", "yes, against "+caFile)
	default:
		row("Verified", "NO, against "+caFile+": "+s.VerifyError)
	}
	return rows
}

func (s inspected) state() string {
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
