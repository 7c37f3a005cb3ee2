// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxInUse bounds the certificates in a response of one server.
const maxInUse = 10_000

// ListCertificates implements pb.EnrollmentServiceServer.
func (s *RenewalService) ListCertificates(
	ctx context.Context, req *pb.ListCertificatesRequest,
) (*pb.ListCertificatesResponse, error) {
	resp := &pb.ListCertificatesResponse{}
	own := api.OwnCertificate(s.cfg.Identity)
	if !s.caReplaced() {
		own.TrustNumber = 0
	}
	all := append(s.reports.list(time.Now()), own)
	for _, certs := range s.cfg.Identity.Certificates()[1:] {
		p, err := tlsutil.PeerFromCert(certs[0], s.cfg.Identity.Domain())
		if err != nil {
			continue // a connection that is being refused
		}
		all = append(all, api.CertificateInUse(s.cfg.Identity, p, certs))
	}
	if c := s.operator(); c != nil {
		all = append(all, c)
	}
	if !req.Here {
		for _, node := range s.cfg.Servers() {
			more, err := s.listAt(ctx, node)
			if err != nil {
				s.cfg.Logger.Debug("cannot list certificates", "node", node, "err", err)
				resp.Unreachable = append(resp.Unreachable, node)
			}
			all = append(all, more...)
		}
	}
	resp.Certificates = MergeCertificates(all)
	resp.Certificates = resp.Certificates[:min(len(resp.Certificates), maxInUse)]
	if !req.Here {
		var err error
		if resp.Missing, err = s.missing(resp.Certificates); err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
	}
	return resp, nil
}

// caReplaced reports whether the CA of this datacenter, if this server has it, is
// below the CA that the present phase of a replacement wants.
func (s *RenewalService) caReplaced() bool {
	t, _, ok := s.cfg.Identity.Trust()
	if !ok || t.Phase != tlsutil.PhaseReissue || s.cfg.Authority.Command != nil {
		return true
	}
	ca, key, err := s.cfg.Authority.Signer(RoleServer)
	return errors.Is(err, ErrNoCA) || err == nil && rootOf(s.cfg.Identity, ca, key) == t.Issuer
}

// listAt returns the certificates that another server of this datacenter sees.
func (s *RenewalService) listAt(ctx context.Context, node string) ([]*pb.CertificateInUse, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	ctx, cc, err := s.cfg.Connect(ctx, node)
	if err != nil {
		return nil, err
	}
	resp, err := pb.NewEnrollmentServiceClient(cc).ListCertificates(ctx, &pb.ListCertificatesRequest{Here: true})
	all := resp.GetCertificates()
	return all[:min(len(all), maxInUse)], err
}

// operator returns the certificate of the operator of this machine, or nil.
func (s *RenewalService) operator() *pb.CertificateInUse {
	b, err := readIfExists(s.cfg.OperatorFile)
	if err != nil || b == nil {
		return nil
	}
	certs, err := tlsutil.ParseCerts(b)
	if err != nil {
		return nil
	}
	p, err := tlsutil.PeerFromCert(certs[0], s.cfg.Identity.Domain())
	if err != nil {
		return nil
	}
	return api.CertificateInUse(s.cfg.Identity, p, certs)
}

// missing returns the expected processes that have not reported a certificate in
// all.
func (s *RenewalService) missing(all []*pb.CertificateInUse) (missing []*pb.MissingProcess, _ error) {
	expected, err := s.cfg.Expected()
	if err != nil {
		return nil, err
	}
	for _, p := range expected {
		if !slices.ContainsFunc(all, func(c *pb.CertificateInUse) bool {
			return c.Datacenter == p.DC && c.Node == p.Node && c.Role == string(p.Role) && len(c.Trusts) > 0
		}) {
			missing = append(missing, &pb.MissingProcess{Node: p.Node, Role: string(p.Role)})
		}
	}
	return missing, nil
}

const (
	// reportTTL is the time for which a report of a gateway counts, which has a
	// heartbeat every two seconds.
	reportTTL = time.Minute
	// maxTrusts bounds the CAs in a report, and maxReportText other texts in bytes.
	maxTrusts     = 64
	maxReportText = 512
)

// reports are what gateways report about their certificates.
type reports struct {
	mu     sync.Mutex
	byPeer map[tlsutil.Peer]report
}

type report struct {
	at   time.Time
	cert *pb.CertificateInUse
}

// Report notes the report of a gateway about its certificate. The names in it
// have no effect. A report that is too long is ignored.
func (s *RenewalService) Report(p tlsutil.Peer, c *pb.CertificateInUse) {
	if c == nil || len(c.Trusts) > maxTrusts || c.NotAfter.CheckValid() != nil ||
		slices.ContainsFunc(append([]string{c.Issuer, c.Serial, c.Root}, c.Trusts...), func(s string) bool {
			return len(s) > maxReportText
		}) {
		return
	}
	s.reports.mu.Lock()
	defer s.reports.mu.Unlock()
	if s.reports.byPeer == nil {
		s.reports.byPeer = map[tlsutil.Peer]report{}
	}
	s.reports.byPeer[p] = report{time.Now(), &pb.CertificateInUse{
		Datacenter: p.DC, Node: p.Node, Role: string(p.Role), Issuer: c.Issuer, Serial: c.Serial, NotAfter: c.NotAfter,
		Renews: c.Renews, Root: c.Root, Trusts: c.Trusts, TrustNumber: c.TrustNumber,
	}}
}

// list returns the recent reports, and removes the others.
func (r *reports) list(now time.Time) (all []*pb.CertificateInUse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, one := range r.byPeer {
		if now.Sub(one.at) > reportTTL {
			delete(r.byPeer, p)
			continue
		}
		all = append(all, one.cert)
	}
	return all
}

// MergeCertificates returns one certificate for each datacenter, role and node,
// sorted by these: that of the report of the process itself, or else the one that
// is valid for the longest time. It omits those whose fields are invalid.
func MergeCertificates(all []*pb.CertificateInUse) []*pb.CertificateInUse {
	all = slices.DeleteFunc(all, func(c *pb.CertificateInUse) bool {
		return tlsutil.CheckLabel(c.GetDatacenter()) != nil || tlsutil.CheckLabel(c.Node) != nil ||
			!slices.Contains(tlsutil.Roles, tlsutil.Role(c.Role)) || c.NotAfter.CheckValid() != nil
	})
	order := func(a, b *pb.CertificateInUse) int {
		return cmp.Or(strings.Compare(a.Datacenter, b.Datacenter),
			slices.Index(tlsutil.Roles, tlsutil.Role(a.Role))-slices.Index(tlsutil.Roles, tlsutil.Role(b.Role)),
			strings.Compare(a.Node, b.Node))
	}
	slices.SortStableFunc(all, func(a, b *pb.CertificateInUse) int {
		return cmp.Or(order(a, b), min(len(b.Trusts), 1)-min(len(a.Trusts), 1), b.NotAfter.AsTime().Compare(a.NotAfter.AsTime()))
	})
	return slices.CompactFunc(all, func(a, b *pb.CertificateInUse) bool { return order(a, b) == 0 })
}
