// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Request is a request for a certificate.
type Request struct {
	// Key is the new private key. It stays on this machine.
	Key crypto.Signer
	// Node is the name of the node. Empty: the server chooses a name.
	Node string
}

// Result is an issued certificate, with what its holder needs to know about the
// federation.
type Result struct {
	Certificate     []byte // PEM, followed by its intermediates
	CAs             []byte // PEM
	Node            string
	Primary         string
	PrimaryGateways []string // host:port; empty in the primary
	Servers         []string // host:port, of the datacenter of the server
	GossipKey       string   // base64; empty if gossip is not encrypted, or for a gateway or an operator
	Via             string   // the address that led to the server
}

// dialTimeout bounds the TCP connection and the TLS handshake with one address.
const dialTimeout = 5 * time.Second

// Redeem exchanges a token for a certificate. It tries the addresses of the token
// in order until one leads to the server. The error of a refusal is that of the
// server. After an error, the token may be used.
func Redeem(ctx context.Context, t *Token, r Request) (*Result, error) {
	var faults []string
	for _, addr := range t.text.Addresses {
		c, err := t.dial(ctx, addr)
		if err != nil {
			faults = append(faults, addr+": "+tlsutil.DescribeError(err))
			continue
		}
		return t.redeem(ctx, c, addr, r)
	}
	return nil, fmt.Errorf("no address of the token leads to %s of %s: %s; check that this machine can reach one of them",
		t.text.Server, t.text.ServerDatacenter, strings.Join(faults, ", "))
}

// serverName returns the SNI and the SAN of the server of t.
func (t *Token) serverName() string {
	return tlsutil.ServerName(t.text.Server, t.text.ServerDatacenter, t.Domain())
}

// dial opens a connection to the server of t.
func (t *Token) dial(ctx context.Context, addr string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: t.serverName(),
		NextProtos: []string{wanfed.ProtoEnroll},
		// The client has no CA yet: VerifyConnection verifies the certificates.
		InsecureSkipVerify: true,
		VerifyConnection:   t.verifyServer,
	})
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return c, nil
}

// verifyServer verifies the certificates of a connection: those of the server of
// t, under the CA whose fingerprint t has.
func (t *Token) verifyServer(c tls.ConnectionState) error {
	if c.NegotiatedProtocol != wanfed.ProtoEnroll {
		return fmt.Errorf("the server does not enroll (protocol %q)", c.NegotiatedProtocol)
	}
	leaf := c.PeerCertificates[0]
	if err := t.verifyChain(leaf, c.PeerCertificates[1:], x509.ExtKeyUsageServerAuth); err != nil {
		return err
	}
	if err := leaf.VerifyHostname(t.serverName()); err != nil {
		return err
	}
	want := tlsutil.Peer{Role: tlsutil.RoleServer, Node: t.text.Server, DC: t.text.ServerDatacenter}
	if p, err := tlsutil.PeerFromCert(leaf, t.Domain()); err != nil || p != want {
		return fmt.Errorf("the certificate is that of %v, not of %v (%w)", p, want, err)
	}
	return nil
}

// verifyChain verifies leaf under the CA of t, which is one of others.
func (t *Token) verifyChain(leaf *x509.Certificate, others []*x509.Certificate, use x509.ExtKeyUsage) error {
	i := slices.IndexFunc(others, func(c *x509.Certificate) bool {
		sum := sha256.Sum256(c.Raw)
		return bytes.Equal(sum[:], t.text.CaSha256)
	})
	if i < 0 {
		return errors.New("the certificate is not of the CA in the token: another machine may have answered")
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(others[i])
	for _, c := range others {
		intermediates.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{use},
	})
	return err
}

// redeem sends the request to the server at c, which it closes.
func (t *Token) redeem(ctx context.Context, c *tls.Conn, addr string, r Request) (*Result, error) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Now().Add(timeout + dialTimeout)) // if it fails, reads and writes fail too
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, r.Key)
	if err != nil {
		return nil, fmt.Errorf("create the certificate request: %w", err)
	}
	signed, err := t.sign(c.ConnectionState(), &pb.EnrollRequest{
		Token: t.ID(), Datacenter: t.text.Datacenter, Role: t.text.Role, Node: r.Node, Csr: csr,
	})
	if err != nil {
		return nil, err
	}
	resp := &pb.EnrollResponse{}
	err = writeMessage(c, signed)
	if err == nil {
		err = readMessage(c, resp)
	}
	if err != nil {
		return nil, fmt.Errorf("no response from %s of %s via %s: %w; the token may be used: create another one",
			t.text.Server, t.text.ServerDatacenter, addr, err)
	}
	if resp.Refused != "" {
		return nil, fmt.Errorf("%s of %s refuses: %s", t.text.Server, t.text.ServerDatacenter, resp.Refused)
	}
	if err := t.verifyIssued(resp, r.Key); err != nil {
		return nil, fmt.Errorf("%s of %s has sent an unusable certificate: %w", t.text.Server, t.text.ServerDatacenter, err)
	}
	return &Result{
		Certificate: resp.Certificate, CAs: resp.Cas, Node: resp.Node, Primary: resp.Primary,
		PrimaryGateways: resp.PrimaryGateways, Servers: resp.Servers, GossipKey: resp.GossipKey, Via: addr,
	}, nil
}

// verifyIssued checks that the certificate in resp is for key, and under the CA
// of t.
func (t *Token) verifyIssued(resp *pb.EnrollResponse, key crypto.Signer) error {
	chain, err := tlsutil.ParseCerts(resp.Certificate)
	if err != nil {
		return err
	}
	cas, err := tlsutil.ParseCerts(resp.Cas)
	if err != nil {
		return err
	}
	if public, ok := chain[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return errors.New("it has another public key")
	}
	return t.verifyChain(chain[0], slices.Concat(chain[1:], cas), x509.ExtKeyUsageAny)
}
