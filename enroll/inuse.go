// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// maxInUse bounds the certificates in a response of one server.
const maxInUse = 10_000

// ListCertificates implements pb.EnrollmentServiceServer.
func (s *RenewalService) ListCertificates(
	ctx context.Context, req *pb.ListCertificatesRequest,
) (*pb.ListCertificatesResponse, error) {
	resp := &pb.ListCertificatesResponse{}
	var all []*pb.CertificateInUse
	for _, c := range s.cfg.Identity.Certificates() {
		p, err := tlsutil.PeerFromCert(c, s.cfg.Identity.Domain())
		if err != nil {
			continue // a connection that is being refused
		}
		all = append(all, &pb.CertificateInUse{
			Datacenter: p.DC, Node: p.Node, Role: string(p.Role), Issuer: c.Issuer.String(), Serial: c.SerialNumber.Text(16),
			NotAfter: timestamppb.New(c.NotAfter), Renews: tlsutil.Enrolled(c) && p.Role != tlsutil.RoleOperator,
		})
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
	return resp, nil
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

// MergeCertificates returns one certificate for each datacenter, role and node,
// sorted by these: the one that is valid for the longest time. It omits those
// whose fields are invalid.
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
		return cmp.Or(order(a, b), b.NotAfter.AsTime().Compare(a.NotAfter.AsTime()))
	})
	return slices.CompactFunc(all, func(a, b *pb.CertificateInUse) bool { return order(a, b) == 0 })
}
