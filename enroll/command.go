// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// commandTimeout bounds one run of a signer command. The client of an enrolment
	// waits for 10 s.
	commandTimeout = 8 * time.Second
	// maxCommands is the number of runs at the same time.
	maxCommands = 4
	// maxCommandOutput bounds the output of a run, in bytes.
	maxCommandOutput = 64 << 10
	// maxIssued bounds the certificates in the output.
	maxIssued = 5
	// signBackdate is the time by which a certificate may begin before its creation,
	// for peers with slow clocks.
	signBackdate = 5 * time.Minute
	// maxCALife is that of the CA of a datacenter.
	maxCALife = tlsutil.DefaultCADays * 24 * time.Hour
)

// errSigner means that the signer command of this server has not issued a
// certificate. The log has the cause.
var errSigner = errors.New("the server cannot issue now, because its signer_command failed; its log has the cause")

// SignerCommand issues certificates with a program, in place of the keys of an
// Authority. The program receives a certificate request in PEM on stdin, and what
// the certificate must have in environment variables: see docs/issuing-keys.md. It
// prints the certificate and its intermediates in PEM. It is safe for concurrent
// use.
type SignerCommand struct {
	argv  []string
	slots chan struct{} // size maxCommands: one element for each run
	// trusted returns the CAs that all datacenters trust, in PEM.
	trusted func() ([]byte, error)
}

// NewSignerCommand returns the SignerCommand of a program and its arguments.
// trusted returns the CAs that all datacenters trust, in PEM.
func NewSignerCommand(argv []string, trusted func() ([]byte, error)) *SignerCommand {
	return &SignerCommand{argv: argv, slots: make(chan struct{}, maxCommands), trusted: trusted}
}

// peer issues the certificate of r for the key of csr.
func (s *SignerCommand) peer(ctx context.Context, r tlsutil.CertRequest, csr *x509.CertificateRequest) ([]byte, error) {
	r.PublicKey = csr.PublicKey
	name, unit, names, ips := r.Subject()
	usages := "clientAuth"
	if len(r.Usages()) > 1 {
		usages = "serverAuth,clientAuth"
	}
	env := append(common(r.Role.String(), r.DC, r.Node, r.Domain, r.Life), "WANFED_SIGN_COMMON_NAME="+name,
		"WANFED_SIGN_UNIT="+unit, "WANFED_SIGN_DNS_NAMES="+strings.Join(names, ","), "WANFED_SIGN_IPS="+joinText(ips),
		"WANFED_SIGN_USAGES="+usages)
	return s.issue(ctx, csr, env, r.CheckIssued)
}

// ca issues the CA of r for the key of csr.
func (s *SignerCommand) ca(ctx context.Context, r tlsutil.CARequest, csr *x509.CertificateRequest) ([]byte, error) {
	r.PublicKey = csr.PublicKey
	domains, networks := r.Permitted()
	env := append(common(RoleDatacenter, r.DC, "", r.Domain, maxCALife), "WANFED_SIGN_COMMON_NAME=CA of "+r.DC,
		"WANFED_SIGN_PERMITTED_DNS="+strings.Join(domains, ","), "WANFED_SIGN_PERMITTED_NETWORKS="+joinText(networks))
	return s.issue(ctx, csr, env, r.CheckIssued)
}

// common returns the variables of all certificates.
func common(role, dc, node, domain string, life time.Duration) []string {
	now := time.Now().UTC()
	return []string{
		"WANFED_SIGN_ROLE=" + role, "WANFED_SIGN_DC=" + dc, "WANFED_SIGN_NODE=" + node, "WANFED_SIGN_DOMAIN=" + domain,
		"WANFED_SIGN_SECONDS=" + strconv.Itoa(int(life.Seconds())),
		"WANFED_SIGN_NOT_BEFORE=" + now.Add(-signBackdate).Format(time.RFC3339),
		"WANFED_SIGN_NOT_AFTER=" + now.Add(life).Format(time.RFC3339),
	}
}

func joinText[T fmt.Stringer](list []T) string {
	var out []string
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

// issue runs the program, and returns its certificate if check accepts it.
func (s *SignerCommand) issue(
	ctx context.Context, csr *x509.CertificateRequest, env []string,
	check func(chain, cas []*x509.Certificate) ([]byte, error),
) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %d runs of it have not ended", errSigner, maxCommands)
	}
	out, err := subprocess.Run(ctx, subprocess.RunConfig{
		Command: s.argv, Env: env, Stdin: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr.Raw}),
		MaxOutput: maxCommandOutput,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSigner, err)
	}
	cert, err := s.checkOutput(out, check)
	if err != nil {
		return nil, fmt.Errorf("%w: certificate of %s refused: %w", errSigner, s.argv[0], err)
	}
	return cert, nil
}

func (s *SignerCommand) checkOutput(out []byte, check func(chain, cas []*x509.Certificate) ([]byte, error)) ([]byte, error) {
	chain, err := tlsutil.ParseCerts(out)
	if err != nil {
		return nil, fmt.Errorf("its output %w", err)
	}
	if len(chain) > maxIssued {
		return nil, fmt.Errorf("its output has %d certificates: must have at most %d", len(chain), maxIssued)
	}
	trusted, err := s.trusted()
	if err != nil {
		return nil, fmt.Errorf("read the trusted CAs: %w", err)
	}
	cas, err := tlsutil.ParseCerts(trusted)
	if err != nil {
		return nil, fmt.Errorf("the file of the trusted CAs %w", err)
	}
	return check(chain, cas)
}

// CanSign returns an error unless the authority issues certificates for tokens of
// a role: with its command, or with a CA. The error is ErrNoCA without a CA. A key
// is not decrypted.
func (a Authority) CanSign(role string) error {
	if a.Command != nil {
		return nil
	}
	_, _, err := a.read(role)
	return err
}

// issue is like Sign, for the key of a certificate request. With a command, the
// command issues the certificate.
func (a Authority) issue(ctx context.Context, role, dc, node string, csr *x509.CertificateRequest) ([]byte, error) {
	switch {
	case a.Command == nil:
		return wrapAuthority(a.Sign(role, dc, node, csr.PublicKey))
	case role == RoleDatacenter:
		return a.Command.ca(ctx, tlsutil.CARequest{DC: dc, Domain: a.Domain}, csr)
	}
	return a.issuePeer(ctx, tlsutil.Peer{Role: certRoles[role], DC: dc, Node: node}, csr)
}

// wrapAuthority adds errAuthority to an error.
func wrapAuthority(cert []byte, err error) ([]byte, error) {
	if err != nil {
		err = fmt.Errorf("%w: %w", errAuthority, err)
	}
	return cert, err
}

// issuePeer is issue for the certificate of a peer.
func (a Authority) issuePeer(ctx context.Context, p tlsutil.Peer, csr *x509.CertificateRequest) ([]byte, error) {
	if a.Command == nil {
		return wrapAuthority(a.signPeer(p, csr.PublicKey))
	}
	r := CertRequest(p, a.Domain, a.Life)
	if r.Life == 0 {
		r.Life = tlsutil.DefaultCertDays * 24 * time.Hour
	}
	return a.Command.peer(ctx, r, csr)
}
