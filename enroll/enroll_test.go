// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// A new datacenter receives a CA of its own, which signs for that datacenter
// only.
func TestRedeem_Datacenter(t *testing.T) {
	r := newRig(t)
	token := r.token("dc2", RoleDatacenter, time.Minute, 1)
	key := newKey(t)
	parsed, err := Parse(token.String() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Redeem(t.Context(), parsed, Request{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if got.Primary != "dc1" || got.Node != "" || !bytes.Equal(got.CAs, r.root.Cert) || got.Via != r.addr {
		t.Errorf("Redeem() = %+v, want primary dc1, the CA and %s", got, r.addr)
	}
	ca := tlsutil.KeyPair{Cert: got.Certificate}
	if ca.Key, err = tlsutil.EncodeKey(key); err != nil {
		t.Fatal(err)
	}
	pair, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1", CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	chain, roots := certs(t, pair.Cert), certs(t, r.root.Cert)
	if err := tlsutil.Verify(chain, roots, tlsutil.DefaultDomain, time.Now()); err != nil {
		t.Errorf("Verify() of a certificate of dc2 = %v, want nil", err)
	}
	if _, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1", CA: ca}); err == nil {
		t.Error("CreateCert() for dc1 with the CA of dc2 = nil, want an error")
	}
	if _, err := tlsutil.CreateCA(tlsutil.CARequest{DC: "dc3", Parent: ca}); err == nil {
		t.Error("CreateCA() with the CA of dc2 = nil, want an error")
	}
	data := r.stored(token)
	if data.Uses != 0 || len(data.Enrollments) != 1 || data.Enrollments[0].Serial != certs(t, got.Certificate)[0].SerialNumber.Text(16) {
		t.Errorf("stored token = %v, want no use left and the serial number", data)
	}
	if all, refused := r.calls(); all != 1 || refused != 0 {
		t.Errorf("records = %d, %d refused, want 1, none refused", all, refused)
	}
}

func certs(t testing.TB, b []byte) []*x509.Certificate {
	t.Helper()
	c, err := tlsutil.ParseCerts(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A node of the local datacenter receives a certificate with a free name, or
// with the name that it requests if the name is free.
func TestRedeem_Node(t *testing.T) {
	r := newRig(t)
	r.taken["server/srv2"] = true
	server := r.token("dc1", RoleServer, time.Minute, 5)
	for _, tt := range []struct {
		token *Token
		node  string // requested
		want  string // node, or a part of the error
	}{
		{server, "", "srv3"},
		{server, "", "srv4"}, // srv3 does not run yet
		{server, "srv7", "srv7"},
		{server, "srv1", "server srv1 exists in dc1"},
		{server, "srv7", "server srv7 exists in dc1"},
		{server, "a.b", "node: "},
		{r.token("dc1", RoleGateway, time.Minute, 1), "", "gw1"},
		{r.token("dc1", RoleOperator, time.Minute, 1), "ann", "ann"},
	} {
		got, err := Redeem(t.Context(), tt.token, Request{Key: newKey(t), Node: tt.node})
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Redeem() as %q = %v, want %s", tt.node, err, tt.want)
			}
			continue
		}
		p, err := tlsutil.PeerFromCert(certs(t, got.Certificate)[0], tlsutil.DefaultDomain)
		want := tlsutil.Peer{Role: certRoles[tt.token.Role()], DC: "dc1", Node: tt.want}
		key := ""
		if tt.token.Role() == RoleServer {
			key = "a key"
		}
		if err != nil || p != want || got.Node != tt.want || len(got.Servers) != 1 || got.GossipKey != key {
			t.Errorf("Redeem() as %q = %+v, peer %v, %v, want %v", tt.node, got, p, err, want)
		}
	}
	if data := r.stored(server); data.Uses != 2 || len(data.Enrollments) != 3 {
		t.Errorf("stored token = %v, want 2 uses left: a request that is refused needs none", data)
	}
}

// A datacenter that exists receives no second CA.
func TestRedeem_DatacenterExists(t *testing.T) {
	r := newRig(t)
	r.known["dc2"] = true
	for _, dc := range []string{"dc1", "dc2"} {
		token := r.token(dc, RoleDatacenter, time.Minute, 1)
		if _, err := r.redeem(token); err == nil || !strings.Contains(err.Error(), "datacenter "+dc+" exists") {
			t.Errorf("Redeem() for %s = %v, want the reason", dc, err)
		}
	}
	token := r.token("dc3", RoleServer, time.Minute, 1)
	if _, err := r.redeem(token); err == nil || !strings.Contains(err.Error(), "certificates of dc1 only") {
		t.Errorf("Redeem() for a server of dc3 = %v, want the reason", err)
	}
}

// A server without the key of a CA refuses, and the token stays valid.
func TestRedeem_NoKey(t *testing.T) {
	r := newRig(t)
	r.service.cfg.Authority.Dir = t.TempDir()
	for _, role := range []string{RoleDatacenter, RoleGateway} {
		dc := map[string]string{RoleDatacenter: "dc2", RoleGateway: "dc1"}[role]
		token := r.token(dc, role, time.Minute, 1)
		if _, err := r.redeem(token); err == nil || !strings.Contains(err.Error(), "this server cannot sign") {
			t.Errorf("Redeem() = %v, want the missing key", err)
		}
		if uses := r.stored(token).Uses; uses != 1 {
			t.Errorf("uses = %d, want 1", uses)
		}
	}
}

// A certificate whose request cannot be recorded is not sent.
func TestRedeem_NotRecorded(t *testing.T) {
	r := newRig(t)
	r.cannotRecord = errors.New("disk full")
	if got, err := r.redeem(r.token("dc2", RoleDatacenter, time.Minute, 1)); err == nil || strings.Contains(err.Error(), "disk") {
		t.Errorf("Redeem() = %+v, %v, want an error without the cause", got, err)
	}
}

func TestRegister_Validate(t *testing.T) {
	g := resource.NewRegistry()
	if err := Register(g); err != nil {
		t.Fatal(err)
	}
	reg, err := g.Lookup(Type)
	if err != nil || reg.Federated {
		t.Fatalf("Lookup() = %+v, %v, want a type that is not federated", reg, err)
	}
	token := newRig(t).token("dc2", RoleDatacenter, time.Minute, 1)
	for want, change := range map[string]func(*pb.Resource, *pb.EnrollmentToken){
		"":              func(*pb.Resource, *pb.EnrollmentToken) {},
		"name ":         func(r *pb.Resource, _ *pb.EnrollmentToken) { r.Id.Name = "other" },
		"datacenter":    func(_ *pb.Resource, d *pb.EnrollmentToken) { d.Datacenter = "a b" },
		"data.role":     func(_ *pb.Resource, d *pb.EnrollmentToken) { d.Role = "cli" },
		"public_key":    func(_ *pb.Resource, d *pb.EnrollmentToken) { d.PublicKey = d.PublicKey[1:] },
		"data.expires":  func(_ *pb.Resource, d *pb.EnrollmentToken) { d.Expires = nil },
		"data.uses 2: ": func(_ *pb.Resource, d *pb.EnrollmentToken) { d.Uses = 2 },
		"data.uses 101": func(_ *pb.Resource, d *pb.EnrollmentToken) { d.Uses = 101 },
	} {
		res, err := token.Resource(time.Now().Add(time.Minute), 1)
		if err != nil {
			t.Fatal(err)
		}
		data, err := resource.Decode[*pb.EnrollmentToken](res)
		if err != nil {
			t.Fatal(err)
		}
		change(res, data)
		if err := resource.SetData(res, data); err != nil {
			t.Fatal(err)
		}
		err = reg.Validate(res)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want %q", err, want)
		}
	}
}

// Only operators and servers create, change and delete tokens.
func TestRegister_Authorize(t *testing.T) {
	g := resource.NewRegistry()
	if err := Register(g); err != nil {
		t.Fatal(err)
	}
	reg, err := g.Lookup(Type)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range tlsutil.Roles {
		for _, verb := range []resource.Verb{resource.VerbWrite, resource.VerbWriteStatus, resource.VerbDelete} {
			err := reg.Authorize(tlsutil.Peer{Role: role, DC: "dc1", Node: "x"}, verb, nil)
			if permitted := role == tlsutil.RoleOperator || role == tlsutil.RoleServer; permitted != (err == nil) {
				t.Errorf("Authorize(%s, %s) = %v, want permitted %t", role, verb, err, permitted)
			}
		}
	}
}
