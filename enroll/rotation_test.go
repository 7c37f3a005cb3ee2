// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// rotationRig has srv1 of dc1 with the key of the CA of all datacenters, gateway
// gw1, and a replacement of that CA.
type rotationRig struct {
	*renewRig
	authority Authority
	trust     tlsutil.Trust
}

func newRotationRig(t testing.TB) *rotationRig {
	t.Helper()
	r := &rotationRig{renewRig: newRenewRig(t)}
	r.authority = r.service.cfg.Authority
	if err := r.root.Save(filepath.Join(r.authority.Dir, RootCert), filepath.Join(r.authority.Dir, RootKey)); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.trust, err = r.authority.StartTrust(1); err != nil {
		t.Fatal(err)
	}
	return r
}

// apply applies the trust of the rig at identities, and makes its issuer issue.
func (r *rotationRig) apply(ids ...*tlsutil.Identity) {
	r.Helper()
	signed, err := r.authority.SignTrust(r.trust)
	for _, id := range ids {
		err = errors.Join(err, id.ApplyTrust(signed))
	}
	if err := errors.Join(err, r.authority.UseRoot(r.trust.Issuer)); err != nil {
		r.Fatal(err)
	}
}

// next applies the next phase.
func (r *rotationRig) next(ids ...*tlsutil.Identity) {
	r.Helper()
	r.trust = NextTrust(r.trust)
	r.apply(ids...)
}

// reissueRequest returns a request for the successor of ca, signed with key.
func reissueRequest(t testing.TB, ca []byte, key crypto.Signer, root string) *pb.ReissueCARequest {
	t.Helper()
	certs, err := tlsutil.ParseCerts(ca)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	signature, err := tlsutil.SignText(key, reissueText(csr))
	if err != nil {
		t.Fatal(err)
	}
	return &pb.ReissueCARequest{Csr: csr, Ca: certs[0].Raw, Signature: signature, Root: root}
}

func keyOf(t testing.TB, p tlsutil.KeyPair) crypto.Signer {
	t.Helper()
	key, err := tlsutil.ParseKey(p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestReissueCA_Refused checks that a server receives a CA only for its own
// datacenter, only with the key of its present CA, and only in the phase reissue.
// A stolen certificate of a server of dc3 gives no CA.
func TestReissueCA_Refused(t *testing.T) {
	r := newRotationRig(t)
	dcCA := func(dc string, parent tlsutil.KeyPair) tlsutil.KeyPair {
		p, err := tlsutil.CreateCA(tlsutil.CARequest{DC: dc, Parent: parent})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	dc2, dc3, revoked := dcCA("dc2", r.root), dcCA("dc3", r.root), dcCA("dc3", r.root)
	foreign, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	srv := r.service.cfg.Identity
	certs, err := tlsutil.ParseCerts(revoked.Cert)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tlsutil.Revoke(tlsutil.RevokeRequest{CA: r.root, Serials: []*big.Int{certs[0].SerialNumber}})
	if err := errors.Join(err, srv.AddRevocations(l.PEM())); err != nil {
		t.Fatal(err)
	}
	thief := tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc3", Node: "srv1"}
	call := func(p tlsutil.Peer, req *pb.ReissueCARequest) (*pb.ReissueCAResponse, error) {
		return r.service.ReissueCA(tlsutil.WithPeer(t.Context(), p), req)
	}
	r.apply(srv)
	if _, err := call(thief, reissueRequest(t, dc3.Cert, keyOf(t, dc3), r.trust.Keep)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("ReissueCA() in phase add = %v, want PermissionDenied", err)
	}
	r.next(srv)
	good := reissueRequest(t, dc3.Cert, keyOf(t, dc3), r.trust.Issuer)
	resp, err := call(thief, good)
	if err != nil {
		t.Fatalf("ReissueCA() = %v, want nil", err)
	}
	next, err := tlsutil.ParseCerts(resp.Certificate)
	if err != nil || tlsutil.CAOf(next[0], "dc3", tlsutil.DefaultDomain) != nil || srv.RootOf(next) != r.trust.Issuer {
		t.Errorf("ReissueCA() = a CA of %v, %v, want one of dc3 below the new CA", next[0].PermittedDNSDomains, err)
	}
	for _, tt := range []struct {
		name   string
		caller tlsutil.Peer
		req    *pb.ReissueCARequest
		want   string
	}{
		{"without the key of the CA", thief, reissueRequest(t, dc3.Cert, newKey(t), r.trust.Issuer), "signature by the key"},
		{"for another datacenter", thief, reissueRequest(t, dc2.Cert, keyOf(t, dc3), r.trust.Issuer),
			"is not the CA of datacenter dc3"},
		{"as another datacenter", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc2", Node: "srv1"}, good,
			"is not the CA of datacenter dc2"},
		{"as an operator", tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc3", Node: "cli"}, good, "only servers"},
		{"below the old CA", thief, reissueRequest(t, dc3.Cert, keyOf(t, dc3), r.trust.Drop),
			"no CA of all datacenters is being replaced"},
		{"of a revoked CA", thief, reissueRequest(t, revoked.Cert, keyOf(t, revoked), r.trust.Issuer), "is revoked"},
		{"of an unknown CA", thief, reissueRequest(t, dcCA("dc3", foreign).Cert, newKey(t), r.trust.Issuer), "not valid"},
		{"of the CA of all", thief, reissueRequest(t, r.root.Cert, keyOf(t, r.root), r.trust.Issuer), "is not the CA of datacenter"},
		{"of a new CA", thief, &pb.ReissueCARequest{Ca: next[0].Raw, Root: r.trust.Issuer}, "below that CA already"},
		{"too long", thief, &pb.ReissueCARequest{Csr: make([]byte, maxCSR+1)}, "too long"},
		{"empty", thief, &pb.ReissueCARequest{}, "present CA"},
	} {
		resp, err := call(tt.caller, tt.req)
		if resp != nil || status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("ReissueCA() %s = %v, %v, want PermissionDenied with %q", tt.name, resp, err, tt.want)
		}
	}
	ctx := tlsutil.WithPeer(t.Context(), thief)
	if _, err := r.server("srv3", false, "down", "srv2", "srv1").ReissueCA(ctx, good); err != nil {
		t.Errorf("ReissueCA() at a server without the CA = %v, want nil", err)
	}
	if _, err := r.server("srv3", false, "srv2", "down").ReissueCA(ctx, good); status.Code(err) != codes.Unavailable {
		t.Errorf("ReissueCA() while the server with the CA is down = %v, want Unavailable", err)
	}
}

// TestReissue checks that a datacenter replaces its CA, and then a gateway its
// certificate, within seconds after another CA issues, and that both go back after
// an abort.
func TestReissue(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRotationRig(t)
		srv := r.service.cfg.Identity
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 2)
		checked := make(chan struct{}) // closed after the checks before the CA is replaced
		go func() { done <- r.renewer().Run(ctx) }()
		go func() {
			done <- Reissuer{
				Identity: srv, Authority: r.authority, Logger: slog.New(slog.DiscardHandler),
				Connect: func(string) (grpc.ClientConnInterface, error) {
					<-checked
					return direct{r.renewRig, r.service, srv.Peer()}, nil
				},
			}.Run(ctx)
		}()
		rooted := func(what string, want string) {
			t.Helper()
			time.Sleep(10 * time.Second)
			synctest.Wait()
			cert, key, err := r.authority.Signer(RoleServer)
			if err != nil || rootOf(srv, cert, key) != want {
				t.Errorf("CA of the datacenter %s: %v, want it below the other CA", what, err)
			}
			if got := r.gateway.RootOf(r.gateway.Certificates()[0]); got != want {
				t.Errorf("certificate of the gateway %s is not below the CA that issues", what)
			}
		}
		r.apply(srv, r.gateway)
		rooted("in phase add", r.trust.Drop)
		r.next(r.gateway) // the gateway is first, and waits for the CA
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if got := r.gateway.Renewal(); got.Failures != 0 || got.Count != 0 {
			t.Errorf("Renewal() without a reissued CA = %+v, want no failure", got)
		}
		signed, err := r.authority.SignTrust(r.trust)
		if err == nil {
			err = srv.ApplyTrust(signed) // its CA is not replaced yet
		}
		if err != nil {
			t.Fatal(err)
		}
		number := func() uint64 {
			resp, err := r.service.ListCertificates(tlsutil.WithPeer(ctx, srv.Peer()), &pb.ListCertificatesRequest{Here: true})
			i := slices.IndexFunc(resp.GetCertificates(), func(c *pb.CertificateInUse) bool { return c.Role == "server" })
			if err != nil || i < 0 {
				t.Fatalf("ListCertificates() = %v, %v, want that of the server", resp, err)
			}
			return resp.Certificates[i].TrustNumber
		}
		if got := number(); got != 0 {
			t.Errorf("the server reports change %d before its CA is replaced, want 0", got)
		}
		cli := tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"}
		_, err = r.service.Renew(tlsutil.WithPeer(ctx, cli), r.request(r.identity(cli, true), newKey(t)))
		if status.Code(err) != codes.Aborted {
			t.Errorf("Renew() of an operator before the CA is replaced = %v, want Aborted", err)
		}
		close(checked)
		r.apply(srv)
		rooted("in phase reissue", r.trust.Keep)
		if got := number(); got != r.trust.Number {
			t.Errorf("the server reports change %d, want %d", got, r.trust.Number)
		}
		if r.trust, err = AbortTrust(r.trust); err != nil {
			t.Fatal(err)
		}
		r.apply(srv, r.gateway)
		rooted("after an abort", r.trust.Keep)
		if got := r.gateway.Renewal(); got.Failures != 0 || got.Count != 2 {
			t.Errorf("Renewal() = %+v, want two renewals", got)
		}
		stop()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		}
	})
}

// changing calls after at the end of each call.
type changing struct {
	direct
	after func()
}

func (c changing) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
	defer c.after()
	return c.direct.Invoke(ctx, method, req, reply, opts...)
}

// A certificate and a CA that were requested before a change of the trust are not
// used: the change may remove what they are below.
func TestRotation_ChangeDuringRequest(t *testing.T) {
	r := newRotationRig(t)
	srv := r.service.cfg.Identity
	r.apply(srv, r.gateway)
	r.next(srv)
	abort := func() {
		var err error
		if r.trust, err = AbortTrust(r.trust); err != nil {
			t.Fatal(err)
		}
		r.apply(srv, r.gateway)
	}
	ca, err := os.ReadFile(filepath.Join(r.authority.Dir, DatacenterCert))
	if err != nil {
		t.Fatal(err)
	}
	conn := changing{direct{r.renewRig, r.service, srv.Peer()}, abort}
	err = Reissuer{
		Identity: srv, Authority: r.authority, Logger: slog.New(slog.DiscardHandler),
		Connect: func(string) (grpc.ClientConnInterface, error) { return conn, nil },
	}.reissue(t.Context())
	if !errors.Is(err, tlsutil.ErrTrustChanged) {
		t.Errorf("reissue() during an abort = %v, want %v", err, tlsutil.ErrTrustChanged)
	}
	if got, err := os.ReadFile(filepath.Join(r.authority.Dir, DatacenterCert)); err != nil || !bytes.Equal(got, ca) {
		t.Errorf("the CA of the datacenter is replaced (%v), want that of before", err)
	}
	leaf, renewer := r.gateway.Leaf(), r.renewer()
	conn = changing{direct{r.renewRig, r.service, gw1}, func() { r.next(srv, r.gateway) }}
	renewer.Connect = func() (grpc.ClientConnInterface, error) { return conn, nil }
	if err := renewer.Renew(t.Context(), ""); !errors.Is(err, tlsutil.ErrTrustChanged) {
		t.Errorf("Renew() during a change = %v, want %v", err, tlsutil.ErrTrustChanged)
	}
	if !r.gateway.Leaf().Equal(leaf) {
		t.Error("the certificate is replaced, want that of before")
	}
}

// TestRotation_Files checks the files of the CAs through the phases, that each step
// can be repeated, and that an abort leaves the old CA.
func TestRotation_Files(t *testing.T) {
	for _, abortIn := range []tlsutil.Phase{"", tlsutil.PhaseAdd, tlsutil.PhaseReissue} {
		r := newRotationRig(t)
		again, err := r.authority.StartTrust(1)
		if err != nil || again.Keep != r.trust.Keep {
			t.Fatalf("StartTrust() again = %v, %v, want the same new CA", again.Keep, err)
		}
		want := r.trust.Keep
		for steps := 0; r.trust.Phase != tlsutil.PhaseDone; steps++ {
			if steps > 6 {
				t.Fatalf("phase %s after %d steps, want done", r.trust.Phase, steps)
			}
			if _, err := r.authority.SignTrust(r.trust); err != nil {
				t.Fatalf("SignTrust() in phase %s = %v, want nil", r.trust.Phase, err)
			}
			for range 2 {
				if err := r.authority.UseRoot(r.trust.Issuer); err != nil {
					t.Fatal(err)
				}
			}
			if r.trust.Phase == abortIn && !r.trust.Aborted {
				want = r.trust.Drop
				if r.trust, err = AbortTrust(r.trust); err != nil {
					t.Fatal(err)
				}
				if twice, err := AbortTrust(r.trust); err != nil || twice.Number != r.trust.Number {
					t.Errorf("AbortTrust() again = %v, %v, want no change", twice, err)
				}
				continue
			}
			r.trust = NextTrust(r.trust)
			if r.trust.Removes() && !r.trust.Aborted {
				if _, err := AbortTrust(r.trust); err == nil {
					t.Error("AbortTrust() in phase remove = nil, want an error")
				}
			}
		}
		if err := r.authority.EndRotation("another CA"); err == nil {
			t.Error("EndRotation() for another CA = nil, want an error")
		}
		if err := r.authority.EndRotation(want); err != nil {
			t.Fatal(err)
		}
		all, err := r.authority.roots()
		if err != nil || len(all) != 1 || tlsutil.Fingerprint(all[0].cert) != want {
			t.Errorf("CAs after a rotation aborted in %q = %d, %v, want the right one alone", abortIn, len(all), err)
		}
		files, err := os.ReadDir(r.authority.Dir)
		if err != nil || len(files) != 4 {
			t.Errorf("files = %v, %v, want 4", files, err)
		}
		for _, name := range []string{RootKey, DatacenterKey} {
			if st, err := os.Stat(filepath.Join(r.authority.Dir, name)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("Stat(%s) = %v, %v, want mode 0600", name, st.Mode(), err)
			}
		}
	}
	r := newRotationRig(t)
	if err := r.authority.UseRoot("0123456789abcdef0123"); !errors.Is(err, ErrNoCA) {
		t.Errorf("UseRoot() of an unknown CA = %v, want ErrNoCA", err)
	}
}

func TestAcknowledged(t *testing.T) {
	const oldCA, newCA = "old", "new"
	cert := func(dc, role, node, root string, trusts ...string) *pb.CertificateInUse {
		return &pb.CertificateInUse{Datacenter: dc, Role: role, Node: node, Root: root, Trusts: trusts,
			NotAfter: timestamppb.New(time.Now().Add(time.Hour)), Renews: role == "server" || role == "gateway"}
	}
	report := func(dc string, certs ...*pb.CertificateInUse) DatacenterReport {
		return DatacenterReport{Datacenter: dc, Response: &pb.ListCertificatesResponse{Certificates: certs}}
	}
	phase := func(p tlsutil.Phase) tlsutil.Trust {
		return tlsutil.Trust{Phase: p, Keep: newCA, Drop: oldCA, Issuer: newCA}
	}
	ownPKI := cert("dc1", "server", "srv2", oldCA, oldCA, newCA)
	ownPKI.Renews = false
	aborted := tlsutil.Trust{Number: 7, Phase: tlsutil.PhaseReissue, Keep: oldCA, Drop: newCA, Issuer: oldCA, Aborted: true}
	received := cert("dc1", "server", "srv1", oldCA, oldCA, newCA)
	received.TrustNumber = 7
	earlier := cert("dc1", "server", "srv2", oldCA, oldCA, newCA) // it renews below newCA later
	earlier.TrustNumber = 6
	forged := cert("dc1", "server", "srv2", oldCA, oldCA, newCA)
	forged.TrustNumber, forged.NotAfter = 7, timestamppb.New(time.Now().Add(1000*time.Hour))
	missing := report("dc1", cert("dc1", "server", "srv1", newCA, newCA))
	missing.Response.Unreachable = []string{"srv2"}
	missing.Response.Missing = []*pb.MissingProcess{{Node: "srv2", Role: "server"}, {Node: "gw1", Role: "gateway"}}
	for _, tt := range []struct {
		name    string
		trust   tlsutil.Trust
		reports []DatacenterReport
		done    int
		want    []string
	}{
		{"add", phase(tlsutil.PhaseAdd), []DatacenterReport{
			report("dc1", cert("dc1", "server", "srv1", oldCA, oldCA, newCA), cert("dc1", "gateway", "gw1", oldCA, oldCA),
				cert("dc1", "cli", "cli", oldCA), cert("dc2", "server", "srv1", oldCA)),
			{Datacenter: "dc3", Err: errors.New("no path")},
		}, 1, []string{"dc1 gateway gw1: does not trust the new CA yet", "dc3: does not respond: no path"}},
		{"forged by another datacenter", aborted, []DatacenterReport{report("dc1", received, earlier), report("dc2", forged)}, 1,
			[]string{"dc1 server srv2: has not applied the change yet"}},
		{"abort", aborted, []DatacenterReport{report("dc1", received, earlier)}, 1,
			[]string{"dc1 server srv2: has not applied the change yet"}},
		{"reissue", phase(tlsutil.PhaseReissue), []DatacenterReport{
			report("dc1", cert("dc1", "server", "srv1", newCA, oldCA, newCA), cert("dc1", "gateway", "gw1", oldCA, oldCA, newCA),
				cert("dc1", "cli", "cli", oldCA), cert("dc1", "sync", "s", oldCA), ownPKI),
		}, 1, []string{
			"dc1 server srv2: its certificate does not renew itself: replace it (wanfed tls cert create)",
			"dc1 gateway gw1: its certificate is not reissued yet",
			"dc1 operator cli: reissue its certificate on its machine: wanfed tls renew",
			"dc1 sync s: its certificate does not renew itself: replace it (wanfed tls cert create)",
		}},
		{"report of the process instead of an older connection", phase(tlsutil.PhaseReissue), []DatacenterReport{
			report("dc1", cert("dc1", "server", "srv1", newCA, newCA)), report("dc2", cert("dc1", "server", "srv1", oldCA)),
		}, 1, nil},
		{"remove", phase(tlsutil.PhaseRemove), []DatacenterReport{
			report("dc1", cert("dc1", "server", "srv1", newCA, newCA), cert("dc1", "gateway", "gw1", newCA, newCA, oldCA),
				cert("dc1", "cli", "cli", newCA)),
		}, 1, []string{"dc1 gateway gw1: still trusts the CA that is removed"}},
		{"missing", phase(tlsutil.PhaseRemove), []DatacenterReport{missing}, 1, []string{
			"dc1 server srv2: does not respond",
			"dc1 gateway gw1: has not reported its certificate: it is down, or of an earlier version",
		}},
	} {
		done, waiting := Acknowledged(tt.trust, tt.reports)
		var got []string
		for _, w := range waiting {
			got = append(got, w.String())
		}
		if done != tt.done || !slices.Equal(got, tt.want) {
			t.Errorf("Acknowledged() of %s = %d, %q, want %d, %q", tt.name, done, got, tt.done, tt.want)
		}
	}
}

// TestReport checks that a report of a gateway counts for a minute, that its names
// are those of its certificate, and that a gateway without one is missing.
func TestReport(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRenewRig(t)
		ctx := tlsutil.WithPeer(t.Context(), tlsutil.Peer{Role: tlsutil.RoleOperator, DC: "dc1", Node: "cli"})
		list := func() (reported, missing bool) {
			t.Helper()
			resp, err := r.service.ListCertificates(ctx, &pb.ListCertificatesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(resp.Certificates, func(c *pb.CertificateInUse) bool {
				return c.Node == "gw1" && c.Datacenter == "dc1" && slices.Equal(c.Trusts, []string{"ca"})
			}), len(resp.Missing) == 1 && resp.Missing[0].Node == "gw1"
		}
		end := timestamppb.New(time.Now().Add(time.Hour))
		r.service.Report(gw1, nil)
		r.service.Report(gw1, &pb.CertificateInUse{NotAfter: end, Trusts: slices.Repeat([]string{"ca"}, maxTrusts+1)})
		r.service.Report(gw1, &pb.CertificateInUse{NotAfter: end, Serial: strings.Repeat("1", maxReportText+1), Trusts: []string{"ca"}})
		if reported, missing := list(); reported || !missing {
			t.Errorf("reported %t, missing %t, without a valid report, want a missing gateway", reported, missing)
		}
		r.service.Report(gw1, &pb.CertificateInUse{Datacenter: "dc9", Node: "gw9", NotAfter: end, Trusts: []string{"ca"}})
		if reported, missing := list(); !reported || missing {
			t.Errorf("reported %t, missing %t, want a report of gw1", reported, missing)
		}
		time.Sleep(reportTTL + time.Second)
		if reported, missing := list(); reported || !missing {
			t.Errorf("reported %t, missing %t, after a minute, want a missing gateway", reported, missing)
		}
	})
}

// FuzzReissueCA checks that no request panics, and that only a request with the
// signature of the present CA has a response.
func FuzzReissueCA(f *testing.F) {
	r := newRotationRig(f)
	r.apply(r.service.cfg.Identity)
	r.next(r.service.cfg.Identity)
	certs, err := tlsutil.ParseCerts(r.ca.Cert)
	if err != nil {
		f.Fatal(err)
	}
	req := reissueRequest(f, r.ca.Cert, keyOf(f, r.ca), r.trust.Issuer)
	f.Add(req.Csr, req.Ca, req.Signature)
	f.Add([]byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, csr, ca, signature []byte) {
		ctx := tlsutil.WithPeer(context.Background(), tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1"})
		_, err := r.service.ReissueCA(ctx, &pb.ReissueCARequest{Csr: csr, Ca: ca, Signature: signature, Root: r.trust.Issuer})
		if err == nil && tlsutil.VerifyText(certs[0], reissueText(csr), signature) != nil {
			t.Error("ReissueCA() = nil without a valid signature")
		}
	})
}
