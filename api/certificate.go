// SPDX-License-Identifier: MPL-2.0

package api

import (
	"crypto/x509"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// CertificateInUse describes a certificate, followed by its intermediates, of
// the peer p. id has the CAs.
func CertificateInUse(id *tlsutil.Identity, p tlsutil.Peer, certs []*x509.Certificate) *pb.CertificateInUse {
	c := certs[0]
	return &pb.CertificateInUse{
		Datacenter: p.DC, Node: p.Node, Role: string(p.Role), Issuer: c.Issuer.String(), Serial: c.SerialNumber.Text(16),
		NotAfter: timestamppb.New(c.NotAfter), Renews: tlsutil.Enrolled(c) && p.Role != tlsutil.RoleOperator,
		Root: id.RootOf(certs),
	}
}

// OwnCertificate describes the certificate of id and the CAs that it trusts.
func OwnCertificate(id *tlsutil.Identity) *pb.CertificateInUse {
	t, _, _ := id.Trust() // before the certificate, which may be of an earlier change
	c := CertificateInUse(id, id.Peer(), id.Certificates()[0])
	c.Trusts, c.TrustNumber = id.CAs(), t.Number
	return c
}
