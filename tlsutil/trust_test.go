// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func keyOf(t testing.TB, ca KeyPair) crypto.Signer {
	t.Helper()
	key, err := ParseKey(ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func fingerprint(t testing.TB, ca KeyPair) string {
	t.Helper()
	certs, err := ParseCerts(ca.Cert)
	if err != nil {
		t.Fatal(err)
	}
	return Fingerprint(certs[0])
}

// trustOf returns a phase of the replacement of one CA by another.
func trustOf(t testing.TB, number uint64, phase Phase, drop, keep KeyPair) Trust {
	t.Helper()
	tr := Trust{
		Number: number, Phase: phase, Keep: fingerprint(t, keep), Drop: fingerprint(t, drop), Issuer: fingerprint(t, keep),
		Trusted: []string{string(keep.Cert)}, Datacenter: "dc1",
	}
	if !tr.Removes() {
		tr.Trusted = append(tr.Trusted, string(drop.Cert))
	}
	if phase == PhaseAdd {
		tr.Issuer = tr.Drop
	}
	return tr
}

func signed(t testing.TB, tr Trust, cas ...KeyPair) SignedTrust {
	t.Helper()
	var keys []crypto.Signer
	for _, ca := range cas {
		keys = append(keys, keyOf(t, ca))
	}
	s, err := SignTrust(tr, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestApplyTrust(t *testing.T) {
	old, next, extra := newCA(t, CARequest{}), newCA(t, CARequest{}), newCA(t, CARequest{})
	dcCA := newCA(t, CARequest{DC: "dc1", Parent: old})
	issue := func(ca KeyPair) KeyPair {
		return issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1"})
	}
	id, files := loadPair(t, slices.Concat(old.Cert, extra.Cert), issue(dcCA))
	want := func(what string, cas ...KeyPair) {
		t.Helper()
		var prints []string
		for _, ca := range cas {
			prints = append(prints, fingerprint(t, ca))
		}
		again, err := Load(files, DefaultDomain, nil)
		if err != nil {
			t.Fatalf("Load() after %s = %v, want nil", what, err)
		}
		for _, i := range []*Identity{id, again} {
			got := i.CAs()
			slices.Sort(got)
			slices.Sort(prints)
			if !slices.Equal(got, prints) {
				t.Errorf("CAs() after %s = %v, want %v", what, got, prints)
			}
		}
	}
	if err := id.ApplyTrust(signed(t, trustOf(t, 1, PhaseAdd, old, next), old, next)); err != nil {
		t.Fatal(err)
	}
	want("phase add", old, next, extra)
	if got := id.MissingRoot(); got != "" {
		t.Errorf("MissingRoot() = %q, want none", got)
	}
	late := newCA(t, CARequest{}) // added by an operator, and not read yet
	first, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.CA, slices.Concat(first, late.Cert), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := id.ApplyTrust(signed(t, trustOf(t, 2, PhaseReissue, old, next), old, next)); err != nil {
		t.Fatal(err)
	}
	want("phase reissue", old, next, extra, late)
	if got := id.MissingRoot(); got != fingerprint(t, next) {
		t.Errorf("MissingRoot() = %q, want the new CA", got)
	}
	before, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	remove := signed(t, trustOf(t, 3, PhaseRemove, old, next), old, next)
	if err := id.ApplyTrust(remove); err == nil || !strings.Contains(err.Error(), "replace the certificate first") {
		t.Errorf("ApplyTrust() that makes the local certificate invalid = %v, want an error", err)
	}
	want("a refused removal", old, next, extra, late)
	if err := id.Replace(issue(next)); err != nil {
		t.Fatal(err)
	}
	if err := id.ApplyTrust(remove); err != nil {
		t.Fatal(err)
	}
	want("phase remove", next, extra, late)
	if err := os.WriteFile(files.CA, before, 0o644); err != nil { // such as by a configuration management
		t.Fatal(err)
	}
	if err := id.Reload(); err != nil {
		t.Fatal(err)
	}
	want("the old file", old, next, extra, late)
	if err := id.ApplyTrust(remove); err != nil {
		t.Fatal(err)
	}
	want("the same change again", next, extra, late)
	if err := id.ApplyTrust(signed(t, trustOf(t, 4, PhaseAdd, next, old), old)); err == nil {
		t.Error("ApplyTrust() of a change that is not signed by a trusted CA = nil, want an error")
	}
	if err := id.ApplyTrust(signed(t, trustOf(t, 2, PhaseReissue, old, next), next)); err != nil {
		t.Errorf("ApplyTrust() of an older change = %v, want nil", err)
	}
	want("an older change", next, extra, late)
	restarted, err := Load(files, DefaultDomain, nil) // it has the number from the file
	if err != nil {
		t.Fatal(err)
	}
	if err := restarted.ApplyTrust(signed(t, trustOf(t, 1, PhaseAdd, old, next), next)); err != nil {
		t.Errorf("ApplyTrust() of an older change after a restart = %v, want nil", err)
	}
	want("an older change after a restart", next, extra, late)
	if st, err := os.Stat(files.CA); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("Stat() = %v, %v, want mode 0644", st.Mode(), err)
	}
}

// TestParseTrust_Refused checks that only a CA of all datacenters can change the
// trusted CAs.
func TestParseTrust_Refused(t *testing.T) {
	old, next, rogue := newCA(t, CARequest{}), newCA(t, CARequest{}), newCA(t, CARequest{})
	dcCA := newCA(t, CARequest{DC: "dc3", Parent: old})
	id, _ := loadPair(t, old.Cert, issueFrom(t, dcCA, CertRequest{Role: RoleServer, DC: "dc3", Node: "srv1"}))
	withDCCA, _ := loadPair(t, slices.Concat(old.Cert, dcCA.Cert), issueFrom(t, dcCA, CertRequest{
		Role: RoleServer, DC: "dc3", Node: "srv1"}))
	good := signed(t, trustOf(t, 1, PhaseAdd, old, next), old)
	changed := signed(t, trustOf(t, 1, PhaseAdd, old, rogue), rogue)
	changed.Signatures = good.Signatures
	leafKey, err := id.Sign(trustText(good.Content))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		id *Identity
		s  SignedTrust
	}{
		"the CA that it adds":          {id, signed(t, trustOf(t, 1, PhaseAdd, old, rogue), rogue)},
		"the CA of a datacenter":       {id, signed(t, trustOf(t, 1, PhaseAdd, old, next), dcCA)},
		"such a CA in the CA file":     {withDCCA, signed(t, trustOf(t, 1, PhaseAdd, old, next), dcCA)},
		"a server":                     {id, SignedTrust{good.Content, [][]byte{leafKey}}},
		"another content":              {id, changed},
		"no CA":                        {id, SignedTrust{Content: good.Content}},
		"too many signatures":          {id, SignedTrust{good.Content, slices.Repeat(good.Signatures, maxTrustSignatures+1)}},
		"content that is not complete": {id, SignedTrust{[]byte("{}"), good.Signatures}},
	} {
		if err := tt.id.ApplyTrust(tt.s); err == nil {
			t.Errorf("ApplyTrust() signed by %s = nil, want an error", name)
		}
		if _, err := tt.id.CheckTrust(tt.s); err == nil {
			t.Errorf("CheckTrust() signed by %s = nil, want an error", name)
		}
	}
	if err := id.ApplyTrust(good); err != nil {
		t.Errorf("ApplyTrust() = %v, want nil", err)
	}
	for name, change := range map[string]func(*Trust){
		"number":     func(tr *Trust) { tr.Number = 0 },
		"phase":      func(tr *Trust) { tr.Phase = "x" },
		"keep":       func(tr *Trust) { tr.Keep = tr.Drop },
		"issuer":     func(tr *Trust) { tr.Issuer = "x" },
		"drop":       func(tr *Trust) { tr.Phase = PhaseRemove },
		"datacenter": func(tr *Trust) { tr.Datacenter = "a.b" },
		"trusted":    func(tr *Trust) { tr.Trusted = append(tr.Trusted, "x") },
	} {
		tr := trustOf(t, 1, PhaseAdd, old, next)
		change(&tr)
		if _, err := SignTrust(tr, keyOf(t, old)); err == nil {
			t.Errorf("SignTrust() with a wrong %s = nil, want an error", name)
		}
	}
}

// rotate applies a phase at both ends.
func (r *renewing) rotate(s SignedTrust) {
	r.Helper()
	if err := errors.Join(r.server.ApplyTrust(s), r.client.ApplyTrust(s)); err != nil {
		r.Fatal(err)
	}
}

// TestApplyTrust_Connection checks that a connection survives the CA with which
// it was opened if both ends have a certificate of the new CA, also if the end
// that accepted it has never seen a handshake with the new certificate of the
// other one before.
func TestApplyTrust_Connection(t *testing.T) {
	for _, renew := range []bool{true, false} {
		testutil.Bubble(t, func(t *testing.T) {
			r := newRenewing(t)
			old, next := r.ca, newCA(t, CARequest{Now: time.Now().Add(-time.Hour)})
			r.run(func() {
				r.rotate(signed(t, trustOf(t, 1, PhaseAdd, old, next), old, next))
				r.rotate(signed(t, trustOf(t, 2, PhaseReissue, old, next), old, next))
				time.Sleep(10 * time.Minute)
				r.ca = next
				if err := r.server.Replace(r.issue("dc1")); err != nil {
					t.Fatal(err)
				}
				if renew {
					if err := r.client.Replace(r.issue("dc2")); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(10 * time.Second)
				remove := signed(t, trustOf(t, 3, PhaseRemove, old, next), old, next)
				if err := r.server.ApplyTrust(remove); err != nil {
					t.Fatal(err)
				}
				if err := r.client.ApplyTrust(remove); (err == nil) != renew {
					t.Fatalf("ApplyTrust() = %v, want an error without a new certificate", err)
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if n := r.server.EndedConnections() + r.client.EndedConnections(); n != 0 {
					t.Fatalf("renewed %t: ended connections = %d after 30 s, want none", renew, n)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := r.server.EndedConnections(); (n == 0) != renew {
					t.Errorf("renewed %t: ended connections of the server = %d, want none with a new certificate only", renew, n)
				}
			})
		})
	}
}

func TestCAOf(t *testing.T) {
	root := newCA(t, CARequest{})
	for name, tt := range map[string]struct {
		ca   KeyPair
		want bool
	}{
		"the CA of dc3":      {newCA(t, CARequest{DC: "dc3", Parent: root}), true},
		"that of dc2":        {newCA(t, CARequest{DC: "dc2", Parent: root}), false},
		"one of more names":  {newCA(t, CARequest{DC: "dc3", Parent: root, Permit: []string{"example.com"}}), false},
		"the CA of all":      {root, false},
		"a certificate":      {newCert(t, CertRequest{CA: root, Role: RoleServer, Node: "srv1", DC: "dc3"}), false},
		"unconstrained root": {newCA(t, CARequest{Unconstrained: true}), false},
	} {
		if err := CAOf(leafOf(t, tt.ca), "dc3", DefaultDomain); (err == nil) != tt.want {
			t.Errorf("CAOf() of %s = %v, want an error: %t", name, err, !tt.want)
		}
	}
}

// FuzzParseTrust checks that no content panics, and that what is accepted can be
// applied.
func FuzzParseTrust(f *testing.F) {
	ca, next := newCA(f, CARequest{}), newCA(f, CARequest{})
	key := keyOf(f, ca)
	cas, err := ParseCerts(ca.Cert)
	if err != nil {
		f.Fatal(err)
	}
	for _, phase := range []Phase{PhaseAdd, PhaseReissue, PhaseDone} {
		b, err := json.Marshal(trustOf(f, 1, phase, ca, next))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		signature, err := SignText(key, trustText(content))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseTrust(SignedTrust{content, nil}, cas); err == nil {
			t.Error("ParseTrust() without a signature = nil, want an error")
		}
		tr, err := ParseTrust(SignedTrust{content, [][]byte{signature}}, cas)
		if err != nil {
			return
		}
		m := &credentials{roots: cas}
		b, err := m.caFile(tr)
		if err != nil || TrustNumber(b) != tr.Number {
			t.Errorf("caFile() = %v, number %d, want %d", err, TrustNumber(b), tr.Number)
		}
	})
}
