// SPDX-License-Identifier: MPL-2.0

package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// Sign creates a certificate that CreateCert would reject. It uses DNSNames,
// NotBefore, NotAfter and ExtKeyUsage of t. By default the certificate is valid
// for one hour, for dialing and accepting.
func (c *CA) Sign(tb testing.TB, t x509.Certificate) tlsutil.KeyPair {
	tb.Helper()
	cas, err := tlsutil.ParseCerts(c.Pair.Cert)
	if err != nil {
		tb.Fatal(err)
	}
	signer, err := tlsutil.ParseKey(c.Pair.Key)
	if err != nil {
		tb.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	if t.NotBefore.IsZero() {
		t.NotBefore = time.Now().Add(-time.Minute)
	}
	if t.NotAfter.IsZero() {
		t.NotAfter = time.Now().Add(time.Hour)
	}
	if t.ExtKeyUsage == nil {
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	t.SerialNumber, t.KeyUsage, t.BasicConstraintsValid = big.NewInt(time.Now().UnixNano()),
		x509.KeyUsageDigitalSignature, true
	der, err := x509.CreateCertificate(rand.Reader, &t, cas[0], key.Public(), signer)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return tlsutil.KeyPair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}
