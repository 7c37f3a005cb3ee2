// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// credentials are the parsed files of an Identity. They are immutable.
type credentials struct {
	cert tls.Certificate // Leaf is set
	cas  *x509.CertPool
	// roots are the certificates in cas.
	roots []*x509.Certificate
	chain []*x509.Certificate // cert and its intermediates
	trust uint64              // number of the Trust in the CA file; 0: none
	// retired are CAs that a Trust has removed since the process started, the last
	// of them at retiredAt. They are valid only for open connections: see verifyOpen.
	retired   []*x509.Certificate
	retiredAt time.Time
	peer      Peer
	ends      *x509.Certificate // certificate whose expiry makes cert invalid, see firstEnd
	sum       [sha256.Size]byte // checksum of the files
}

// rawFiles has the contents of the files of an Identity.
type rawFiles struct {
	ca, cert, key []byte
	crl           []byte // empty: no file
}

func (r rawFiles) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, b := range [][]byte{r.ca, r.cert, r.key} {
		s := sha256.Sum256(b)
		h.Write(s[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// maxFile limits the size of a PEM file in bytes. Trust bundles are much
// smaller.
const maxFile = 4 << 20

func readRaw(f Files) (r rawFiles, _ error) {
	var errs []error
	for _, part := range []struct {
		kind, path string
		to         *[]byte
	}{{"CA", f.CA, &r.ca}, {"cert", f.Cert, &r.cert}, {"key", f.Key, &r.key}} {
		b, e := readFile(part.kind, part.path)
		*part.to = b
		errs = append(errs, e)
	}
	if f.CA != "" {
		b, err := readFile("revocation list", RevocationFile(f.CA))
		if !errors.Is(err, fs.ErrNotExist) {
			r.crl, errs = b, append(errs, err)
		}
	}
	return r, join(errs...)
}

func readFile(kind, path string) ([]byte, error) {
	if path == "" {
		return nil, fmt.Errorf("no %s file given", kind)
	}
	f, err := os.Open(path)
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(f, maxFile+1)) // the size of a device is unknown
		err = errors.Join(err, f.Close())
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("%s file %s has more than %d bytes: it is not a PEM file", kind, path, maxFile)
	}
	var pe *fs.PathError
	switch {
	case err == nil:
		return b, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, &describedError{fmt.Sprintf("%s file %s does not exist; check the path", kind, path), fs.ErrNotExist}
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s file %s may not be read by this user; change its owner or mode", kind, path)
	case errors.As(err, &pe):
		err = pe.Err
	}
	return nil, fmt.Errorf("read %s file %s: %w", kind, path, err)
}

// parse parses raw, and checks that the files belong together.
func (i *Identity) parse(raw rawFiles) (*credentials, error) {
	caName, certName, keyName := filepath.Base(i.files.CA), filepath.Base(i.files.Cert), filepath.Base(i.files.Key)
	cas, err := ParseCerts(raw.ca)
	if err != nil {
		return nil, fmt.Errorf("CA %s: %w", caName, err)
	}
	chain, err := ParseCerts(raw.cert)
	if err != nil {
		return nil, fmt.Errorf("cert %s: %w", certName, err)
	}
	key, err := parseKey(raw.key, chain[0])
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", keyName, err)
	}
	if !sameKey(chain[0], key) {
		return nil, fmt.Errorf("key %s does not belong to cert %s; use two files that were created together",
			keyName, certName)
	}
	m := &credentials{cas: poolOf(cas), roots: cas, chain: chain, trust: TrustNumber(raw.ca), sum: raw.sum()}
	m.cert.PrivateKey, m.cert.Leaf = key, chain[0]
	for _, c := range chain {
		m.cert.Certificate = append(m.cert.Certificate, c.Raw)
	}
	if m.peer, err = PeerFromCert(chain[0], i.domain); err != nil {
		return nil, fmt.Errorf("cert %s: %w; make one with: "+
			"wanfed tls cert create --server (or --gateway) --datacenter DC --node NODE%s", certName, err,
			domainFlag(i.domain))
	}
	chains, err := verify(chain, m.cas, m.peer.Role, time.Now())
	if err != nil {
		return nil, fmt.Errorf("cert %s: %w (CA file %s)", certName, err, caName)
	}
	m.ends = firstEnd(chains)
	return m, nil
}

// retire sets retired from the credentials that m replaces. A CA that an operator
// has removed from the CA file by hand is not retired.
func (m *credentials) retire(old *credentials, now time.Time) {
	m.retired, m.retiredAt = old.retired, old.retiredAt
	if m.trust <= old.trust {
		return
	}
	for _, c := range old.roots {
		if !slices.ContainsFunc(m.roots, c.Equal) {
			m.retired, m.retiredAt = append(slices.Clip(m.retired), c), now
		}
	}
}

func poolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool
}

// verify verifies chain against cas for all uses of role. It returns the
// verified chains.
func verify(chain []*x509.Certificate, cas *x509.CertPool, role Role, now time.Time) ([][]*x509.Certificate, error) {
	chains, err := verifyFor(chain, cas, x509.ExtKeyUsageClientAuth, now)
	if err != nil || !role.accepts() {
		return chains, err
	}
	return verifyFor(chain, cas, x509.ExtKeyUsageServerAuth, now)
}

func verifyFor(
	chain []*x509.Certificate, cas *x509.CertPool, use x509.ExtKeyUsage, now time.Time,
) ([][]*x509.Certificate, error) {
	chains, err := chain[0].Verify(x509.VerifyOptions{
		Roots: cas, Intermediates: poolOf(chain[1:]), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
	})
	if err != nil {
		return nil, described(err)
	}
	return chains, nil
}

// firstEnd returns the certificate whose expiry leaves no valid chain. A chain
// becomes invalid when the first of its certificates expires. Another chain may
// remain valid for longer.
func firstEnd(chains [][]*x509.Certificate) *x509.Certificate {
	byEnd := func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }
	ends := make([]*x509.Certificate, len(chains))
	for i, chain := range chains {
		ends[i] = slices.MinFunc(chain, byEnd)
	}
	return slices.MaxFunc(ends, byEnd)
}

// ParseCerts returns the certificates of a PEM file. A file without a
// certificate is an error, which describes the content of the file.
func ParseCerts(b []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	other := ""
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			other = block.Type
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, c)
	}
	switch {
	case len(certs) > 0:
		return certs, nil
	case strings.HasSuffix(other, "PRIVATE KEY"):
		return nil, errors.New("is a private key, not a certificate; keep it secret, and use the certificate's file")
	case other != "":
		return nil, fmt.Errorf("has no certificate but a PEM block %q; use the certificate's file", other)
	}
	return nil, errors.New("is not PEM: no line -----BEGIN CERTIFICATE-----")
}

// ParseKey returns the private key of a PEM file, in PKCS #8, SEC 1 (EC) or
// PKCS #1 (RSA). An encrypted key is an error. Of several keys, ParseKey returns
// the first.
func ParseKey(b []byte) (crypto.Signer, error) { return parseKey(b, nil) }

// parseKey is like ParseKey. Of several keys, it returns that of certificate c,
// unless c is nil. While a certificate is replaced, the file has the old and the
// new key: see Identity.Replace.
func parseKey(b []byte, c *x509.Certificate) (crypto.Signer, error) {
	var first crypto.Signer
	other := ""
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case typeEncryptedKey:
			return nil, errors.New("is encrypted; decrypt it first: openssl pkey -in FILE -out NEWFILE")
		default:
			other = block.Type
			continue
		}
		if err != nil {
			return nil, errors.New("holds a private key that cannot be parsed") // err may contain the key
		}
		s, err := signerOf(key)
		switch {
		case err != nil:
			return nil, err
		case c == nil || sameKey(c, s):
			return s, nil
		case first == nil:
			first = s
		}
	}
	if first != nil {
		return first, nil
	}
	if other != "" {
		return nil, fmt.Errorf("has no private key but a PEM block %q; use the key's file", other)
	}
	return nil, errors.New("is not PEM: no line -----BEGIN PRIVATE KEY-----")
}

func signerOf(key any) (crypto.Signer, error) {
	s, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("holds a key that cannot sign (%T)", key)
	}
	return s, nil
}

func sameKey(c *x509.Certificate, key crypto.Signer) bool {
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(c.PublicKey)
}

// warnKeyMode logs a warning if group or others can read the key file. Windows
// does not have these modes.
func (i *Identity) warnKeyMode() {
	if runtime.GOOS == "windows" {
		return
	}
	if st, err := os.Stat(i.files.Key); err == nil && st.Mode().Perm()&0o077 != 0 {
		i.logger.Warn("private key file can be read by group or others; make it 0600",
			"file", i.files.Key, "mode", fmt.Sprintf("%04o", st.Mode().Perm()))
	}
}

// join is errors.Join with a text of one line.
func join(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	return &describedError{strings.ReplaceAll(err.Error(), "\n", "; "), err}
}
