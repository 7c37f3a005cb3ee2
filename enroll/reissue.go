// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/tlsutil"
)

// reissueText returns what the key of the present CA signs.
func reissueText(csr []byte) []byte { return append([]byte("wanfed reissue CA request 1\x00"), csr...) }

// rootOf returns the fingerprint of the CA of all datacenters that the CA of key
// is below, or "". pem may have other certificates too.
func rootOf(id *tlsutil.Identity, pem []byte, key crypto.Signer) string {
	c, err := certOf(pem, key)
	if err != nil {
		return ""
	}
	return id.RootOf([]*x509.Certificate{c})
}

// certOf returns the certificate in pem that belongs to key.
func certOf(pem []byte, key crypto.Signer) (*x509.Certificate, error) {
	certs, err := tlsutil.ParseCerts(pem)
	if err != nil {
		return nil, fmt.Errorf("CA %w", err)
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	i := slices.IndexFunc(certs, func(c *x509.Certificate) bool { return ok && public.Equal(c.PublicKey) })
	if i < 0 {
		return nil, errors.New("the key of the CA does not belong to its certificate")
	}
	return certs[i], nil
}

// ReissueCA implements pb.EnrollmentServiceServer. Only the holder of the key of
// the present CA of its own datacenter receives a CA, and only while that CA is
// not below the issuer that the Trust of this server names. A server without that
// key, also one with a stolen certificate, receives none.
func (s *RenewalService) ReissueCA(ctx context.Context, req *pb.ReissueCARequest) (*pb.ReissueCAResponse, error) {
	caller, err := s.cfg.Peer(ctx)
	if err != nil {
		return nil, err
	}
	root, key, err := s.cfg.Authority.Signer(RoleDatacenter)
	switch {
	case errors.Is(err, ErrNoCA) && !req.Here:
		return s.forwardReissue(ctx, req)
	case errors.Is(err, ErrNoCA):
		return nil, status.Error(codes.FailedPrecondition, ErrNoCA.Error())
	case err != nil:
		return nil, s.cannotSign(caller, err)
	}
	issuer, err := certOf(root, key)
	if err != nil {
		return nil, s.cannotSign(caller, err)
	}
	csr, old, err := s.checkReissue(caller, req)
	if err != nil {
		return nil, status.Errorf(codes.PermissionDenied, "reissue of the CA for %v refused: %v", caller, err)
	}
	if tlsutil.Fingerprint(issuer) != req.Root {
		return nil, status.Error(codes.Unavailable, "the new CA of all datacenters does not issue yet")
	}
	cert, err := s.cfg.Authority.Sign(RoleDatacenter, caller.DC, "", csr.PublicKey)
	if err != nil {
		return nil, s.cannotSign(caller, err)
	}
	chain, err := tlsutil.ParseCerts(cert)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.cfg.Logger.Info("CA issued", "peer", caller, "dc", caller.DC, "serial", chain[0].SerialNumber.Text(16),
		"replaces", old.SerialNumber.Text(16), "not_after", chain[0].NotAfter.UTC().Format(time.RFC3339))
	return &pb.ReissueCAResponse{Certificate: cert}, nil
}

// checkReissue returns the certificate request and the present CA, if the caller
// may have a new one.
func (s *RenewalService) checkReissue(
	caller tlsutil.Peer, req *pb.ReissueCARequest,
) (*x509.CertificateRequest, *x509.Certificate, error) {
	if len(req.Csr) > maxCSR || len(req.Signature) > maxSignature || len(req.Ca) > maxCert {
		return nil, nil, errors.New("the request has a field that is too long")
	}
	old, err := x509.ParseCertificate(req.Ca)
	if err != nil {
		return nil, nil, fmt.Errorf("present CA: %w", err)
	}
	t, _, ok := s.cfg.Identity.Trust()
	switch root := s.cfg.Identity.RootOf([]*x509.Certificate{old}); {
	case caller.Role != tlsutil.RoleServer:
		return nil, nil, errors.New("only servers request it")
	case !ok || t.Phase != tlsutil.PhaseReissue || t.Issuer != req.Root:
		return nil, nil, errors.New("no CA of all datacenters is being replaced by that one")
	case root == t.Issuer:
		return nil, nil, errors.New("the present CA is below that CA already")
	}
	if err := tlsutil.CAOf(old, caller.DC, s.cfg.Identity.Domain()); err != nil {
		return nil, nil, err
	}
	if err := s.cfg.Identity.VerifyPeer([]*x509.Certificate{old}); err != nil {
		return nil, nil, fmt.Errorf("the present CA is not valid: %w", err)
	}
	if err := tlsutil.VerifyText(old, reissueText(req.Csr), req.Signature); err != nil {
		return nil, nil, fmt.Errorf("signature by the key of the present CA: %w", err)
	}
	csr, err := tlsutil.ParseCSR(req.Csr)
	return csr, old, err
}

// forwardReissue calls the other servers of the datacenter until one of them has
// the CA.
func (s *RenewalService) forwardReissue(
	ctx context.Context, req *pb.ReissueCARequest,
) (*pb.ReissueCAResponse, error) {
	req = &pb.ReissueCARequest{Csr: req.Csr, Ca: req.Ca, Signature: req.Signature, Root: req.Root, Here: true}
	last := status.Errorf(codes.Unavailable, "no server of %s that responds has the CA of all datacenters (%s and %s)", s.cfg.DC,
		RootCert, RootKey)
	for _, node := range s.cfg.Servers() {
		resp, err := s.reissueAt(ctx, node, req)
		switch status.Code(err) {
		case codes.FailedPrecondition: // it does not have the CA
		case codes.Unavailable, codes.DeadlineExceeded:
			last = err
		default:
			return resp, err
		}
	}
	return nil, last
}

func (s *RenewalService) reissueAt(
	ctx context.Context, node string, req *pb.ReissueCARequest,
) (*pb.ReissueCAResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	ctx, cc, err := s.cfg.Connect(ctx, node)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return pb.NewEnrollmentServiceClient(cc).ReissueCA(ctx, req)
}

// Reissuer replaces the CA of a datacenter in the files of an Authority when
// another CA of all datacenters issues. All fields are required.
type Reissuer struct {
	Identity  *tlsutil.Identity
	Authority Authority
	// Connect returns a connection to a server of datacenter dc.
	Connect func(dc string) (grpc.ClientConnInterface, error)
	Logger  *slog.Logger
}

// Run replaces the CA after each change of the Trust, if it is not below the
// issuer, until ctx ends. It does nothing on a server without the CA of the
// datacenter. It returns nil.
func (r Reissuer) Run(ctx context.Context) error {
	retry := backoff.Backoff{Min: minRenewPause, Max: maxReissuePause}
	for ctx.Err() == nil {
		changed := r.Identity.TrustChanged()
		err := r.reissue(ctx)
		if err == nil {
			retry.Reset()
			backoff.Sleep(ctx, checkInterval, changed)
			continue
		}
		if ctx.Err() == nil {
			r.Logger.Warn("cannot replace the CA of the datacenter", "err", err)
		}
		backoff.Sleep(ctx, retry.Next(), changed)
	}
	return nil
}

// reissue replaces the CA if necessary.
func (r Reissuer) reissue(ctx context.Context) error {
	t, _, ok := r.Identity.Trust()
	if !ok || t.Phase != tlsutil.PhaseReissue {
		return nil
	}
	cert, key, err := r.Authority.Signer(RoleServer)
	if errors.Is(err, ErrNoCA) || err == nil && rootOf(r.Identity, cert, key) == t.Issuer {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	old, err := certOf(cert, key)
	if err != nil {
		return err
	}
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create a key: %w", err)
	}
	req := &pb.ReissueCARequest{Ca: old.Raw, Root: t.Issuer}
	if req.Csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, next); err != nil {
		return fmt.Errorf("create the certificate request: %w", err)
	}
	if req.Signature, err = tlsutil.SignText(key, reissueText(req.Csr)); err != nil {
		return fmt.Errorf("sign the certificate request: %w", err)
	}
	cc, err := r.Connect(t.Datacenter)
	if err != nil {
		return err
	}
	resp, err := pb.NewEnrollmentServiceClient(cc).ReissueCA(ctx, req, grpc.WaitForReady(true))
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	return r.Identity.IfTrust(t.Number, func() error { return r.use(resp.Certificate, next, old, t.Issuer) })
}

// use checks the new CA and replaces the files.
func (r Reissuer) use(cert []byte, key crypto.Signer, old *x509.Certificate, root string) error {
	c, err := certOf(cert, key)
	if err == nil {
		err = tlsutil.CAOf(c, r.Authority.DC, r.Identity.Domain())
	}
	if err == nil && r.Identity.RootOf([]*x509.Certificate{c}) != root {
		err = errors.New("it is not below the CA that issues")
	}
	if err != nil {
		return fmt.Errorf("the new CA cannot be used: %w", err)
	}
	text, err := r.Authority.encodeKey(key)
	if err != nil {
		return err
	}
	if err := ReplaceCA(r.Authority.Dir, DatacenterCert, DatacenterKey, tlsutil.KeyPair{Cert: cert, Key: text}); err != nil {
		return err
	}
	r.Logger.Info("CA of the datacenter replaced", "serial", c.SerialNumber.Text(16), "replaces", old.SerialNumber.Text(16),
		"not_after", c.NotAfter.UTC().Format(time.RFC3339))
	return nil
}

// ReplaceCA replaces the certificate and the key of a CA in dir by p. If the
// process ends during ReplaceCA, and while another process reads the files, they
// belong together: the certificate file has both certificates while the key is
// replaced.
func ReplaceCA(dir, certFile, keyFile string, p tlsutil.KeyPair) error {
	certFile, keyFile = filepath.Join(dir, certFile), filepath.Join(dir, keyFile)
	old, err := readIfExists(certFile)
	if err != nil {
		return err
	}
	err = atomicfile.WriteFile(certFile, slices.Concat(p.Cert, old), 0o644)
	if err == nil {
		err = atomicfile.WriteFile(keyFile, p.Key, 0o600)
	}
	if err == nil {
		err = atomicfile.WriteFile(certFile, p.Cert, 0o644)
	}
	if err != nil {
		return fmt.Errorf("replace the CA in %s: %w", dir, err)
	}
	return nil
}

func readIfExists(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}
