// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// RenewalConfig configures a RenewalService. All fields are required.
type RenewalConfig struct {
	DC        string
	Identity  *tlsutil.Identity // has the CAs and the revocation lists
	Authority Authority
	// Peer returns the caller of a request.
	Peer func(ctx context.Context) (tlsutil.Peer, error)
	// OperatorFile is the certificate of the operator of this machine. The file may be
	// absent.
	OperatorFile string
	// Servers returns the names of the other servers of this datacenter.
	Servers func() []string
	// Expected returns the servers and gateways of this datacenter, also those that
	// do not run.
	Expected func() ([]tlsutil.Peer, error)
	// Connect returns a connection to one of Servers, and the context of a call
	// for the caller of ctx.
	Connect func(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error)
	Logger  *slog.Logger
}

// RenewalService renews certificates of enrolment. It is safe for concurrent
// use.
type RenewalService struct {
	pb.UnimplementedEnrollmentServiceServer
	cfg     RenewalConfig
	reports reports
}

// NewRenewalService returns a RenewalService.
func NewRenewalService(cfg RenewalConfig) *RenewalService { return &RenewalService{cfg: cfg} }

// Bounds of a RenewRequest. Sizes are in bytes.
const (
	maxCSR       = 4 << 10
	maxChain     = 4
	maxCert      = 16 << 10
	maxSignature = 1 << 10
)

// renewText returns what the key of the present certificate signs.
func renewText(csr []byte) []byte { return append([]byte("wanfed renew request 1\x00"), csr...) }

// Renew implements pb.EnrollmentServiceServer. The certificate has the role and
// the name of the caller's present certificate. The caller proves that it has the
// key of that certificate also to the server that issues, which need not trust
// the server that forwards.
func (s *RenewalService) Renew(ctx context.Context, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	caller, err := s.cfg.Peer(ctx)
	if err != nil {
		return nil, err
	}
	err = s.cfg.Authority.CanSign(RoleServer)
	switch {
	case errors.Is(err, ErrNoCA) && !req.Here:
		return s.forward(ctx, req)
	case errors.Is(err, ErrNoCA):
		return nil, status.Error(codes.FailedPrecondition, ErrNoCA.Error())
	case err != nil:
		return nil, s.cannotSign(caller, err)
	}
	if want := s.wantedRoot(caller, req); want != "" {
		if err := s.checkRoot(want); err != nil {
			return nil, status.Error(codes.Aborted, publicText(err))
		}
	}
	csr, old, err := s.check(caller, req)
	if err != nil {
		return nil, status.Errorf(codes.PermissionDenied, "renewal of %v refused: %v", caller, err)
	}
	cert, err := s.cfg.Authority.issuePeer(ctx, caller, csr)
	if err != nil {
		return nil, s.cannotSign(caller, err)
	}
	chain, err := tlsutil.ParseCerts(cert)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.cfg.Logger.Info("certificate issued", "peer", caller, "serial", chain[0].SerialNumber.Text(16),
		"replaces", old.SerialNumber.Text(16), "not_after", chain[0].NotAfter.UTC().Format(time.RFC3339))
	return &pb.RenewResponse{Certificate: cert}, nil
}

// cannotSign logs why this server cannot sign, and returns the error for the
// caller, which does not name files of this server.
func (s *RenewalService) cannotSign(caller tlsutil.Peer, err error) error {
	s.cfg.Logger.Warn("certificate not issued", "peer", caller, "err", err)
	if !errors.Is(err, errSigner) {
		err = errAuthority
	}
	return status.Error(codes.Unavailable, publicText(err))
}

// checkRoot returns an error unless this server issues certificates below the CA
// with the fingerprint root.
func (s *RenewalService) checkRoot(root string) error {
	if s.cfg.Authority.Command != nil {
		return fmt.Errorf("signer_command issues the certificates of %s: wanfed tls ca rotate does not replace its CA",
			s.cfg.DC)
	}
	ca, key, err := s.cfg.Authority.Signer(RoleServer)
	if err != nil {
		return fmt.Errorf("%w: %w", errAuthority, err)
	}
	if rootOf(s.cfg.Identity, ca, key) != root {
		return fmt.Errorf("the CA of %s is not below the new CA of all datacenters yet: repeat the renewal in some seconds",
			s.cfg.DC)
	}
	return nil
}

// wantedRoot returns the CA of all datacenters that the new certificate must be
// below, or "". While that CA is replaced, an operator, who renews by hand, receives
// no certificate of the old one.
func (s *RenewalService) wantedRoot(caller tlsutil.Peer, req *pb.RenewRequest) string {
	t, _, ok := s.cfg.Identity.Trust()
	if ok && t.Phase == tlsutil.PhaseReissue && caller.Role == tlsutil.RoleOperator && s.cfg.Authority.Command == nil {
		return t.Issuer
	}
	return req.Root
}

// check returns the certificate request and the present certificate of the
// caller, if the caller may renew it.
func (s *RenewalService) check(
	caller tlsutil.Peer, req *pb.RenewRequest,
) (*x509.CertificateRequest, *x509.Certificate, error) {
	if len(req.Csr) > maxCSR || len(req.Signature) > maxSignature || len(req.Chain) == 0 || len(req.Chain) > maxChain {
		return nil, nil, fmt.Errorf("the request has a field that is missing or too long")
	}
	var chain []*x509.Certificate
	for _, der := range req.Chain {
		if len(der) > maxCert {
			return nil, nil, fmt.Errorf("a certificate has %d bytes: must have at most %d", len(der), maxCert)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, nil, fmt.Errorf("present certificate: %w", err)
		}
		chain = append(chain, c)
	}
	leaf := chain[0]
	p, err := tlsutil.PeerFromCert(leaf, s.cfg.Identity.Domain())
	switch {
	case err != nil:
		return nil, nil, err
	case p != caller:
		return nil, nil, fmt.Errorf("the present certificate is that of %v", p)
	case p.DC != s.cfg.DC:
		return nil, nil, fmt.Errorf("servers of %s renew certificates of %s only", s.cfg.DC, s.cfg.DC)
	case !tlsutil.Enrolled(leaf):
		return nil, nil, errors.New("the present certificate was not issued by wanfed init, wanfed join or a renewal; " +
			"replace it with the means that have created it")
	}
	if err := s.cfg.Identity.VerifyPeer(chain); err != nil {
		return nil, nil, fmt.Errorf("the present certificate is not valid: %w", err)
	}
	if err := tlsutil.VerifyText(leaf, renewText(req.Csr), req.Signature); err != nil {
		return nil, nil, fmt.Errorf("signature by the key of the present certificate: %w", err)
	}
	csr, err := tlsutil.ParseCSR(req.Csr)
	if err != nil {
		return nil, nil, err
	}
	if err := tlsutil.CheckCSRNames(csr, leaf.DNSNames, leaf.IPAddresses); err != nil {
		return nil, nil, err
	}
	if key, ok := csr.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || key.Equal(leaf.PublicKey) {
		return nil, nil, errors.New("the key is that of the present certificate: a new one is needed")
	}
	return csr, leaf, nil
}

// forwardTimeout bounds the call of one server that may have the CA, or a signer
// command.
const forwardTimeout = commandTimeout + 2*time.Second

// forward calls the other servers of the datacenter until one of them has the
// CA.
func (s *RenewalService) forward(ctx context.Context, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	req = &pb.RenewRequest{Csr: req.Csr, Chain: req.Chain, Signature: req.Signature, Root: req.Root, Here: true}
	var faults []string
	for _, node := range s.cfg.Servers() {
		resp, err := s.forwardTo(ctx, node, req)
		switch status.Code(err) {
		case codes.FailedPrecondition: // it does not have the CA
		case codes.Unavailable, codes.DeadlineExceeded:
			faults = append(faults, fmt.Sprintf("%s: %s", node, status.Convert(err).Message()))
		default:
			return resp, err
		}
	}
	if len(faults) > 0 {
		return nil, status.Errorf(codes.Unavailable, "no server of %s that responds has its CA (%s and %s in the directory ca "+
			"of the data directory); start the one that has: %s", s.cfg.DC, DatacenterCert, DatacenterKey, strings.Join(faults, ", "))
	}
	return nil, status.Errorf(codes.FailedPrecondition, "no server of %s has its CA (%s and %s in the directory ca of the data "+
		"directory); start the one that has, or copy the files", s.cfg.DC, DatacenterCert, DatacenterKey)
}

func (s *RenewalService) forwardTo(ctx context.Context, node string, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	ctx, cc, err := s.cfg.Connect(ctx, node)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return pb.NewEnrollmentServiceClient(cc).Renew(ctx, req)
}
