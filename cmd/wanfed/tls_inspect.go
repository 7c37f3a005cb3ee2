// SPDX-License-Identifier: MPL-2.0

package main

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/tlsutil"
)

// inspected is one certificate of a file, as --format json shows it.
type inspected struct {
	File     string `json:"file"`
	Position int    `json:"position"` // in the file, from 1
	Of       int    `json:"of"`
	tlsutil.Description
	Verified    *bool  `json:"verified,omitempty"` // only with --ca
	VerifyError string `json:"verify_error,omitempty"`
}

func newTLSInspect() *cobra.Command {
	var format, caFile, domain string
	c := &cobra.Command{
		Use:   "inspect FILE...",
		Short: "Show whose certificates these are, their names, expiry and issuer",
		Long: `Show the certificates in PEM files: role, datacenter and node, names, expiry, issuer and usage.

With --ca each file's first certificate is verified as handshakes do it, through the file's other
certificates; exit code 1 says that one of them does not verify.`,
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
			if format != "table" && format != "json" {
				return usagef("--format %q is neither table nor json", format)
			}
			if err := tlsutil.CheckDomain(domain); domain != "" && err != nil {
				return usagef("--domain: %w", err)
			}
			return inspect(cmd.OutOrStdout(), files, format, caFile, domain)
		},
	}
	c.Flags().StringVar(&format, "format", "table", "table or json")
	c.Flags().StringVar(&caFile, "ca", "", "verify against the CAs in this file")
	c.Flags().StringVar(&domain, "domain", "", "domain of names on the wire (default: what the names suggest)")
	return c
}

// inspect shows all files that it can and then returns what was wrong with any.
func inspect(w io.Writer, files []string, format, caFile, domain string) error {
	var cas []*x509.Certificate
	if caFile != "" {
		var err error
		if cas, err = readCerts(caFile); err != nil {
			return err
		}
	}
	var all []inspected
	var faults []string
	for _, file := range files {
		certs, err := readCerts(file)
		if err != nil {
			faults = append(faults, err.Error())
			continue
		}
		for i, c := range certs {
			s := inspected{File: file, Position: i + 1, Of: len(certs), Description: tlsutil.Describe(c, domain, time.Now())}
			if cas != nil && i == 0 {
				err := tlsutil.Verify(certs, cas, domain, time.Now())
				ok := err == nil
				s.Verified = &ok
				if !ok {
					s.VerifyError = err.Error()
					faults = append(faults, fmt.Sprintf("%s does not verify against %s", file, caFile))
				}
			}
			all = append(all, s)
		}
	}
	if err := writeInspected(w, all, format, caFile); err != nil {
		return err
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "; "))
	}
	return nil
}

func readCerts(file string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("file %s does not exist; check the path", file)
	}
	if err != nil {
		return nil, err
	}
	certs, err := tlsutil.ParseCerts(b)
	if err != nil {
		return nil, fmt.Errorf("file %s %w", file, err)
	}
	return certs, nil
}

func writeInspected(w io.Writer, all []inspected, format, caFile string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(append([]inspected{}, all...)) // [] rather than null
	}
	for i, s := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprint(w, s.table(caFile))
	}
	return nil
}

// table shows s as a heading and aligned rows.
func (s inspected) table(caFile string) string {
	var b strings.Builder
	b.WriteString(s.File)
	if s.Of > 1 {
		fmt.Fprintf(&b, " (%d of %d)", s.Position, s.Of)
	}
	b.WriteByte('\n')
	row := func(key, format string, args ...any) {
		fmt.Fprintf(&b, "  %-11s %s\n", key, fmt.Sprintf(format, args...))
	}
	switch {
	case s.Role != "":
		row("role", "%s", s.Role)
		row("datacenter", "%s", s.DC)
		row("node", "%s", s.Node)
		row("domain", "%s", s.Domain)
	case s.CA:
		row("role", "CA")
	default:
		row("role", "none: %s", s.NoPeer)
	}
	if len(s.Permitted) > 0 {
		row("permitted", "%s", strings.Join(s.Permitted, ", "))
	}
	if len(s.DNSNames)+len(s.IPs) > 0 {
		row("names", "%s", strings.Join(append(s.DNSNames[:len(s.DNSNames):len(s.DNSNames)], s.IPs...), ", "))
	}
	row("valid", "%s to %s (%s)", s.NotBefore.Format(time.RFC3339), s.NotAfter.Format(time.RFC3339), s.state())
	row("subject", "%s", s.Subject)
	if s.SelfSigned {
		row("issuer", "itself")
	} else {
		row("issuer", "%s", s.Issuer)
	}
	row("serial", "%s", s.Serial)
	row("usage", "%s", strings.Join(s.Usage, ", "))
	if s.Verified != nil && *s.Verified {
		row("verified", "yes, against %s", caFile)
	} else if s.Verified != nil {
		row("verified", "NO, against %s: %s", caFile, s.VerifyError)
	}
	return b.String()
}

func (s inspected) state() string {
	switch {
	case s.Expired:
		return fmt.Sprintf("EXPIRED %d days ago", -s.DaysLeft-1)
	case s.NotYetValid:
		return "NOT YET VALID"
	}
	return fmt.Sprintf("%d days left", s.DaysLeft)
}
