// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestMergeCertificates(t *testing.T) {
	now := time.Now()
	cert := func(dc, role, node, serial string, left time.Duration) *pb.CertificateInUse {
		return &pb.CertificateInUse{Datacenter: dc, Role: role, Node: node, Serial: serial, NotAfter: timestamppb.New(now.Add(left))}
	}
	var got []string
	for _, c := range MergeCertificates([]*pb.CertificateInUse{
		cert("dc2", "server", "srv1", "1", time.Hour), cert("dc1", "gateway", "gw1", "2", time.Hour),
		cert("dc1", "gateway", "gw1", "3", 2*time.Hour), cert("dc1", "server", "srv1", "4", time.Hour),
		cert("dc1", "gateway", "gw1", "5", time.Minute),
		nil, {}, cert("dc1", "root", "srv1", "6", time.Hour), cert("DC1", "server", "srv1", "7", time.Hour),
		{Datacenter: "dc1", Role: "server", Node: "srv9", NotAfter: &timestamppb.Timestamp{Nanos: -1}},
		{Datacenter: "dc1", Role: "server", Node: "srv8"},
	}) {
		got = append(got, fmt.Sprintf("%s/%s/%s %s", c.Datacenter, c.Role, c.Node, c.Serial))
	}
	if want := []string{"dc1/server/srv1 4", "dc1/gateway/gw1 3", "dc2/server/srv1 1"}; !slices.Equal(got, want) {
		t.Errorf("MergeCertificates() = %v, want %v", got, want)
	}
}

// TestListCertificates checks that a server lists its own certificate and those
// that the other servers of the datacenter see.
func TestListCertificates(t *testing.T) {
	r := newRenewRig(t)
	ctx := tlsutil.WithPeer(t.Context(), tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"})
	resp, err := r.server("srv3", false, "srv1", "down").ListCertificates(ctx, &pb.ListCertificatesRequest{})
	if err != nil || len(resp.Certificates) != 2 || resp.Certificates[0].Node != "srv1" || resp.Certificates[1].Node != "srv3" ||
		!resp.Certificates[0].Renews || !slices.Equal(resp.Unreachable, []string{"down"}) {
		t.Errorf("ListCertificates() = %v, %v, want srv1 and srv3, and that down does not respond", resp, err)
	}
	resp, err = r.server("srv3", false, "srv1", "down").ListCertificates(ctx, &pb.ListCertificatesRequest{Here: true})
	if err != nil || len(resp.Certificates) != 1 || len(resp.Unreachable) != 0 {
		t.Errorf("ListCertificates(here) = %v, %v, want srv3", resp, err)
	}
}

// FuzzMergeCertificates checks that no fields of a server panic, or appear
// although they are invalid.
func FuzzMergeCertificates(f *testing.F) {
	f.Add("dc1", "srv1", "server", int64(1), int32(0))
	f.Add("", "", "", int64(-1), int32(-1))
	f.Fuzz(func(t *testing.T, dc, node, role string, seconds int64, nanos int32) {
		c := &pb.CertificateInUse{Datacenter: dc, Node: node, Role: role,
			NotAfter: &timestamppb.Timestamp{Seconds: seconds, Nanos: nanos}}
		for _, c := range MergeCertificates([]*pb.CertificateInUse{c, c}) {
			if tlsutil.CheckLabel(c.Datacenter) != nil || tlsutil.CheckLabel(c.Node) != nil {
				t.Errorf("MergeCertificates() = %v", c)
			}
		}
	})
}
