// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// managerWith returns the PrimaryManager of a server of dc with a certificate of ca.
func managerWith(t testing.TB, ca *tlstest.CA, dc, configured string) *PrimaryManager {
	t.Helper()
	return newPrimaryManager(t, PrimaryManagerConfig{
		DC: dc, ConfiguredPrimary: configured, Identity: ca.Identity(t, tlsutil.RoleServer, "srv1", dc),
		Backend: resourcetest.NewStore(), Registry: registry(t), Remote: fakeRemote{},
	})
}

// mustSign returns a proof that a new certificate of role in dc has signed.
func mustSign(t testing.TB, ca *tlstest.CA, role tlsutil.Role, dc string, e Epoch, former string) *pb.EpochProof {
	t.Helper()
	proof, err := SignEpoch(ca.Identity(t, role, "signer", dc), e, former)
	if err != nil {
		t.Fatal(err)
	}
	return proof
}

// mustTakeOver returns the proof of a take-over in e.
func mustTakeOver(t testing.TB, ca *tlstest.CA, e Epoch) *pb.EpochProof {
	t.Helper()
	proof := mustSign(t, ca, tlsutil.RoleOperator, e.Datacenter, e, "")
	if err := addSignature(ca.Identity(t, tlsutil.RoleServer, "srv1", e.Datacenter), proof); err != nil {
		t.Fatal(err)
	}
	return proof
}

// A server of the former primary can prove an epoch, and so can an operator with a
// server of the new one. No other single certificate can.
func TestProof(t *testing.T) {
	ca := tlstest.NewCA(t)
	p := managerWith(t, ca, "dc1", "dc1")
	server, operator, e := tlsutil.RoleServer, tlsutil.RoleOperator, Epoch{2, "dc3"}
	signed := func(role tlsutil.Role, dc, former string) *pb.EpochProof {
		t.Helper()
		return mustSign(t, ca, role, dc, e, former)
	}
	consent, takeOver := signed(server, "dc1", "dc1"), mustTakeOver(t, ca, e)
	changed := func(proof *pb.EpochProof, change func(*pb.EpochProof)) *pb.EpochProof {
		proof = proto.CloneOf(proof)
		change(proof)
		return proof
	}
	for _, tt := range []struct {
		name  string
		proof *pb.EpochProof
		want  string // in the error; "": none
	}{
		{"server of the former primary", consent, ""},
		{"operator and server of the new primary", takeOver, ""},
		{"operator of the new primary", signed(operator, "dc3", ""), "role server of dc3 is missing"},
		{"server of the new primary as an operator", signed(server, "dc3", ""), "role operator of dc3 is missing"},
		{"server of the new primary", signed(server, "dc3", "dc1"), "missing: server/dc3/signer has signed"},
		{"operator of the former primary", signed(operator, "dc1", ""), "missing: cli/dc1/signer has signed"},
		{"operator in place of a server", signed(operator, "dc1", "dc1"), "missing: cli/dc1/signer has signed"},
		{"client", signed(tlsutil.RoleClient, "dc3", ""), "missing: client/dc3/signer has signed"},
		{"gateway", signed(tlsutil.RoleGateway, "dc1", "dc1"), "missing: gateway/dc1/signer has signed"},
		{"a third signature", changed(takeOver, func(p *pb.EpochProof) {
			p.Signatures = append(signed(server, "dc2", "").Signatures, p.Signatures...)
		}), "role server of dc3 is missing"},
		{"another CA", mustSign(t, tlstest.NewCA(t), operator, "dc3", e, ""), "signed by another CA"},
		{"another number", changed(consent, func(p *pb.EpochProof) { p.Epoch.Number++ }), "verification"},
		{"another datacenter", changed(consent, func(p *pb.EpochProof) { p.Epoch.Datacenter = "dc4" }), "verification"},
		{"another time", changed(consent, func(p *pb.EpochProof) { p.Signatures[0].SignedAt.Seconds++ }), "verification"},
		{"time before the certificate", changed(consent, func(p *pb.EpochProof) { p.Signatures[0].SignedAt = nil }),
			"not valid"},
		{"first epoch", changed(consent, func(p *pb.EpochProof) { p.Epoch.Number = firstEpoch }), "not a proof"},
		{"no certificate", changed(consent, func(p *pb.EpochProof) { p.Signatures[0].Certificates = nil }), "0 certificates"},
		{"a long chain", changed(consent, func(p *pb.EpochProof) {
			p.Signatures[0].Certificates = slices.Repeat(p.Signatures[0].Certificates, maxSignerCerts+1)
		}), "5 certificates"},
		{"truncated certificate", changed(consent, func(p *pb.EpochProof) {
			p.Signatures[0].Certificates[0] = p.Signatures[0].Certificates[0][:40]
		}), "certificate of the signer"},
		{"oversize", changed(consent, func(p *pb.EpochProof) { p.Signatures[0].Signature = make([]byte, maxProofBytes) }),
			"not a proof"},
		{"nothing", nil, "not a proof"},
	} {
		err := p.verifyProof(tt.proof)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("verifyProof() of %s = %v, want %q", tt.name, err, tt.want)
		}
	}

	signer, err := x509.ParseCertificate(takeOver.Signatures[0].Certificates[0])
	if err != nil {
		t.Fatal(err)
	}
	list, err := tlsutil.Revoke(tlsutil.RevokeRequest{CA: ca.Pair, Names: []string{signer.DNSNames[0]},
		Before: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cfg.Identity.AddRevocations(list.PEM()); err != nil {
		t.Fatal(err)
	}
	if err := p.verifyProof(takeOver); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("verifyProof() of a revoked operator = %v, want an error", err)
	}
}

// A proof is valid for longer than the certificate of its signer.
func TestProof_Expired(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ca := tlstest.NewCA(t)
		p := managerWith(t, ca, "dc1", "dc1")
		proof := mustTakeOver(t, ca, Epoch{100, "dc2"})
		time.Sleep((tlsutil.DefaultCertDays + 1) * 24 * time.Hour)
		if err := p.verifyProof(proof); err != nil {
			t.Errorf("verifyProof() after the expiry of the signer = %v, want nil", err)
		}
	})
}

// A primary that was away for several moves learns of them in one probe, from the
// last proofs of each signer.
func TestProof_Chain(t *testing.T) {
	ca := tlstest.NewCA(t)
	consent := func(former string, number uint64, dc string) *pb.EpochProof {
		t.Helper()
		return mustSign(t, ca, tlsutil.RoleServer, former, Epoch{number, dc}, former)
	}
	takeOver := func(number uint64, dc string) *pb.EpochProof {
		t.Helper()
		return mustTakeOver(t, ca, Epoch{number, dc})
	}
	var proofs []*pb.EpochProof
	for _, proof := range []*pb.EpochProof{
		consent("dc1", 2, "dc2"), consent("dc2", 3, "dc1"), takeOver(100, "dc3"), consent("dc3", 101, "dc2"),
		consent("dc2", 102, "dc4"), takeOver(200, "dc2"), consent("dc2", 201, "dc3"),
	} {
		proofs = addProof(proofs, proof)
	}
	if len(proofs) != 4 {
		t.Errorf("addProof() kept %d proofs, want those of dc1, dc2, dc3 and the last take-over", len(proofs))
	}
	slices.Reverse(proofs) // the order does not matter
	for _, own := range []Epoch{{1, "dc1"}, {3, "dc1"}, {2, "dc2"}, {100, "dc3"}, {102, "dc4"}} {
		p := managerWith(t, ca, "dc9", own.Datacenter)
		setPrimary(t, p, &pb.Primary{Datacenter: own.Datacenter, Complete: true, Epoch: own.Number})
		p.learnProven(proofs)
		if got := p.KnownEpoch(); got != (Epoch{201, "dc3"}) {
			t.Errorf("KnownEpoch() of a server that knew %v = %v, want 201:dc3", own, got)
		}
	}
	// A former primary cannot consent to a second successor.
	p := managerWith(t, ca, "dc9", "dc3")
	setPrimary(t, p, &pb.Primary{Datacenter: "dc3", Complete: true, Epoch: 201})
	p.learnProven([]*pb.EpochProof{consent("dc1", 202, "dc2"), consent("dc2", 300, "dc4")})
	if got := p.KnownEpoch(); got != (Epoch{201, "dc3"}) {
		t.Errorf("KnownEpoch() after consents of former primaries = %v, want 201:dc3", got)
	}
}

// An attacker with a certificate of a server of dc3 also answers at the addresses of
// dc3, as a primary in a newer epoch. He stops neither the primary nor a planned move.
func TestEpoch_AnsweredByAttacker(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		fed := &testFederation{t: t}
		dc1, dc2, dc3 := fed.add("dc1", "dc1"), fed.add("dc2", "dc1"), fed.add("dc3", "dc1")
		put(t, dc1.store, docType, "a", "1")
		waitInSync(t, dc1.store, dc2.store)
		waitInSync(t, dc1.store, dc3.store)
		forged := Epoch{70, "dc3"}
		dc3.restart("dc3")
		setPrimary(t, dc3.manager, &pb.Primary{
			Datacenter: "dc3", Complete: true, Epoch: forged.Number, Proofs: []*pb.EpochProof{
				mustSign(t, fed.ca(), tlsutil.RoleServer, "dc3", forged, "dc1"),
				mustSign(t, fed.ca(), tlsutil.RoleServer, "dc3", forged, "dc3"),
				mustSign(t, fed.ca(), tlsutil.RoleServer, "dc3", forged, ""),
			},
		})
		attack := func() {
			for range 60 {
				for _, dc := range []*datacenter{dc1, dc2} {
					dc.manager.Report(forged, "dc3")
					dc.manager.Report(forged, "dc4")
					dc.manager.ProbePrimary(t.Context(), "dc3")
				}
				time.Sleep(time.Second)
			}
		}
		attack()
		for _, dc := range []*datacenter{dc1, dc2} {
			if got := dc.manager.KnownEpoch(); got != (Epoch{1, "dc1"}) {
				t.Errorf("KnownEpoch() in %s = %v, want 1:dc1", dc.name, got)
			}
		}
		if err := dc1.manager.Writable(); err != nil {
			t.Errorf("Writable() in dc1 = %v, want nil", err)
		}
		dc1.restart("dc2")
		dc2.restart("dc2")
		attack()
		dc2.waitPrimary("dc2")
		if err := dc2.manager.Writable(); err != nil || dc2.manager.Epoch() != 2 {
			t.Errorf("Writable() in dc2 after the planned move = %v in epoch %d, want nil in 2", err, dc2.manager.Epoch())
		}
	})
}

// FuzzProof checks that no bytes of a peer prove an epoch, and that none panics.
func FuzzProof(f *testing.F) {
	ca := tlstest.NewCA(f)
	p := managerWith(f, ca, "dc1", "dc1")
	valid := mustSign(f, ca, tlsutil.RoleServer, "dc1", Epoch{2, "dc2"}, "dc1")
	b, err := proto.Marshal(valid)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		proof := &pb.EpochProof{}
		if proto.Unmarshal(b, proof) != nil || proof.GetFormer() == "dc1" && proto.Equal(proof.Epoch, valid.Epoch) {
			return
		}
		if err := p.verifyProof(proof); err == nil {
			t.Errorf("verifyProof(%v) = nil, want an error", proof)
		}
		p.learnProven([]*pb.EpochProof{proof})
	})
}

// A consent is not used if its epoch is older than a known one of the former primary,
// for example because that datacenter was restored from a snapshot.
func TestCheckConsent(t *testing.T) {
	ca := tlstest.NewCA(t)
	p := managerWith(t, ca, "dc2", "dc2")
	setPrimary(t, p, &pb.Primary{Datacenter: "dc1", Complete: true, Epoch: 3})
	sign := func(number uint64, former string) *pb.EpochProof {
		t.Helper()
		return mustSign(t, ca, tlsutil.RoleServer, former, Epoch{number, "dc2"}, former)
	}
	for _, tt := range []struct {
		c    consent
		want string // in the error; "": none
	}{
		{consent{"dc2", 3, sign(4, "dc1")}, ""},
		{consent{"dc2", 1, sign(2, "dc1")}, "it is of epoch 1, but 3:dc1 is known"},
		{consent{"dc2", 3, sign(5, "dc1")}, "no signature"},
		{consent{"dc2", 3, sign(4, "dc3")}, "no signature"},
		{consent{"dc2", 3, nil}, "no signature"},
	} {
		err := p.checkConsent(tt.c, "dc1")
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("checkConsent(%v) = %v, want %q", tt.c, err, tt.want)
		}
	}
}
