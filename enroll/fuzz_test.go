// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

func exampleToken(f *testing.F) *Token {
	t, err := New(&pb.EnrollmentTokenText{
		CaSha256: make([]byte, 32), Addresses: []string{"198.51.100.1:8443"}, Server: "srv1", ServerDatacenter: "dc1",
		Datacenter: "dc2", Role: RoleDatacenter,
	})
	if err != nil {
		f.Fatal(err)
	}
	return t
}

// FuzzParse checks that no text makes Parse panic, and that each token that it
// accepts has the same text again.
func FuzzParse(f *testing.F) {
	f.Add(exampleToken(f).String())
	f.Add(prefix)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(token.String())
		if err != nil || again.ID() != token.ID() || !proto.Equal(again.text, token.text) {
			t.Errorf("Parse() of an accepted token = %v, %v", again, err)
		}
	})
}

// FuzzRequest checks that no message of a client makes the service panic, or
// obtains a certificate.
func FuzzRequest(f *testing.F) {
	r := newRig(f)
	token := r.token("dc2", RoleDatacenter, time.Hour, 1)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, newKey(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, req := range []*pb.EnrollRequest{
		{}, {Token: token.ID(), Datacenter: "dc2", Role: RoleDatacenter, Csr: csr}, {Token: "*"},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		var message bytes.Buffer
		if err := writeMessage(&message, &pb.SignedEnrollRequest{Request: b, Signature: make([]byte, 64)}); err != nil {
			f.Fatal(err)
		}
		f.Add(message.Bytes(), csr)
	}
	f.Fuzz(func(t *testing.T, message, csr []byte) {
		_, _ = tlsutil.ParseCSR(csr)
		signed, req := &pb.SignedEnrollRequest{}, &pb.EnrollRequest{}
		if readMessage(bytes.NewReader(message), signed) != nil || proto.Unmarshal(signed.Request, req) != nil {
			return
		}
		resp, err := r.service.redeem(context.Background(), req, "192.0.2.1:1", func([]byte) bool { return false })
		if err == nil || resp != nil {
			t.Errorf("redeem(%v) = %v, want an error", req, resp)
		}
	})
}
