// SPDX-License-Identifier: MPL-2.0

package load

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// MakeCert writes cert.pem and key.pem into dir: one self-signed P-256
// certificate, which clients trust directly.
func MakeCert(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "gatewaybench"},
		DNSNames:  []string{TLSName, RawName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	write := func(name, kind string, b []byte) error {
		return os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600)
	}
	return errors.Join(write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER))
}

func serverTLS(dir string) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, fmt.Errorf("load the certificate of the servers: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{"bench"}, MinVersion: tls.VersionTLS13,
	}, nil
}

func clientTLS(dir, name string) (*tls.Config, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("no certificate in %s", dir)
	}
	return &tls.Config{RootCAs: roots, ServerName: name, NextProtos: []string{"bench"}, MinVersion: tls.VersionTLS13},
		nil
}

// recordHello returns the first record that crypto/tls sends as a client of the
// named server: a real ClientHello.
func recordHello(name string) ([]byte, error) {
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Handshake receives no response, and fails when the pipe is closed.
		cfg := &tls.Config{ServerName: name, NextProtos: []string{"bench"}, MinVersion: tls.VersionTLS13}
		_ = tls.Client(client, cfg).Handshake()
	}()
	defer func() {
		server.Close()
		client.Close()
		<-done
	}()
	if err := server.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	head := make([]byte, recordHeader)
	if _, err := io.ReadFull(server, head); err != nil {
		return nil, fmt.Errorf("record a ClientHello: %w", err)
	}
	rec := append(head, make([]byte, binary.BigEndian.Uint16(head[3:]))...)
	if _, err := io.ReadFull(server, rec[recordHeader:]); err != nil {
		return nil, fmt.Errorf("record a ClientHello: %w", err)
	}
	return rec, nil
}

// Constants of a TLS record (RFC 8446, section 5.1).
const (
	recordHeader    = 5
	recordHandshake = 22
)
