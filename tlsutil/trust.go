// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/dirlock"
)

// Phase is a phase of the replacement of the CA of all datacenters.
type Phase string

// The phases, in order.
const (
	PhaseAdd     Phase = "add"     // all processes trust both CAs
	PhaseReissue Phase = "reissue" // all certificates are issued below Issuer
	PhaseRemove  Phase = "remove"  // no process trusts Drop any more
	PhaseDone    Phase = "done"    // all processes have removed Drop
)

// Trust states which CAs all processes of all datacenters trust, and which of
// them issues. CAs are identified by Fingerprint.
type Trust struct {
	Number uint64 `json:"number"` // grows with each change
	Phase  Phase  `json:"phase"`
	Keep   string `json:"keep"`   // the CA that stays
	Drop   string `json:"drop"`   // the CA that is removed
	Issuer string `json:"issuer"` // Keep or Drop
	// Aborted is true after the replacement was aborted: the old CA stays.
	Aborted bool `json:"aborted"`
	// Trusted are the certificates of the CAs, in PEM, without Drop in the last two
	// phases.
	Trusted []string `json:"trusted"`
	// Datacenter is that of the server with the key of Issuer.
	Datacenter string `json:"datacenter"`
}

// SignedTrust is a Trust in JSON, with signatures by the keys of CAs.
type SignedTrust struct {
	Content    []byte
	Signatures [][]byte
}

// Bounds of a SignedTrust. maxTrust is in bytes.
const (
	maxTrust           = 32 << 10
	maxTrustSignatures = 4
	maxTrusted         = 4
)

// Fingerprint returns the SHA-256 of a certificate, in hexadecimal digits.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// trustText returns what the keys of CAs sign.
func trustText(content []byte) []byte { return append([]byte("wanfed trust 1\x00"), content...) }

// SignTrust signs t with the keys of CAs.
func SignTrust(t Trust, keys ...crypto.Signer) (s SignedTrust, err error) {
	if err := t.check(); err != nil {
		return s, err
	}
	if s.Content, err = json.Marshal(t); err != nil {
		return s, err
	}
	for _, key := range keys {
		signature, err := SignText(key, trustText(s.Content))
		if err != nil {
			return s, fmt.Errorf("sign the trusted CAs: %w", err)
		}
		s.Signatures = append(s.Signatures, signature)
	}
	return s, nil
}

// ParseTrust verifies that one of cas has signed s, and returns its content. The
// CA of a datacenter cannot sign a Trust.
func ParseTrust(s SignedTrust, cas []*x509.Certificate) (*Trust, error) {
	if len(s.Content) > maxTrust || len(s.Signatures) > maxTrustSignatures {
		return nil, fmt.Errorf("the trusted CAs have more than %d bytes or %d signatures", maxTrust, maxTrustSignatures)
	}
	if !slices.ContainsFunc(cas, func(ca *x509.Certificate) bool { return signedBy(s, ca) }) {
		return nil, errors.New("the change of the trusted CAs is not signed by a CA that is trusted here")
	}
	t := &Trust{}
	if err := json.Unmarshal(s.Content, t); err != nil {
		return nil, fmt.Errorf("trusted CAs: %w", err)
	}
	return t, t.check()
}

func signedBy(s SignedTrust, ca *x509.Certificate) bool {
	if !ca.IsCA || ca.MaxPathLenZero || !bytes.Equal(ca.RawIssuer, ca.RawSubject) {
		return false
	}
	return slices.ContainsFunc(s.Signatures, func(signature []byte) bool {
		return VerifyText(ca, trustText(s.Content), signature) == nil
	})
}

// CAs returns the trusted CAs.
func (t *Trust) CAs() (cas []*x509.Certificate, _ error) {
	for _, text := range t.Trusted {
		certs, err := ParseCerts([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("trusted CA %w", err)
		}
		if len(certs) != 1 || !certs[0].IsCA {
			return nil, errors.New("trusted CA: must be one certificate of a CA")
		}
		cas = append(cas, certs[0])
	}
	return cas, nil
}

// Removes reports whether processes remove Drop.
func (t *Trust) Removes() bool { return t.Phase == PhaseRemove || t.Phase == PhaseDone }

func (t *Trust) check() error {
	phases := []Phase{PhaseAdd, PhaseReissue, PhaseRemove, PhaseDone}
	cas, err := t.CAs()
	if err != nil {
		return err
	}
	trusts := func(f string) bool {
		return slices.ContainsFunc(cas, func(c *x509.Certificate) bool { return Fingerprint(c) == f })
	}
	switch {
	case t.Number == 0:
		return errors.New("number of the trusted CAs: must be at least 1")
	case !slices.Contains(phases, t.Phase):
		return fmt.Errorf("phase %.20q: must be one of %v", t.Phase, phases)
	case len(cas) > maxTrusted:
		return fmt.Errorf("%d trusted CAs: must be at most %d", len(cas), maxTrusted)
	case !trusts(t.Keep) || !trusts(t.Issuer) || t.Drop == t.Keep:
		return errors.New("trusted CAs: must contain the CA that stays and the one that issues")
	case trusts(t.Drop) == t.Removes():
		return fmt.Errorf("trusted CAs in phase %s: must contain the CA that is removed until phase %s", t.Phase, PhaseRemove)
	}
	return prefix("datacenter", CheckLabel(t.Datacenter))
}

// trustLine begins the first line of a CA file that ApplyTrust has written. The
// number of the Trust follows it.
const trustLine = "# Written by wanfed. Trusted CAs, change "

// TrustNumber returns the number of the Trust in the content of a CA file, or 0.
func TrustNumber(ca []byte) uint64 {
	line, ok := bytes.CutPrefix(ca, []byte(trustLine))
	line, _, _ = bytes.Cut(line, []byte("\n"))
	n, err := strconv.ParseUint(string(line), 10, 64)
	if !ok || err != nil {
		return 0
	}
	return n
}

// caFile returns the content of the CA file of m with the CAs of t: other CAs
// stay.
func (m *credentials) caFile(t *Trust) ([]byte, error) {
	cas, err := t.CAs()
	if err != nil {
		return nil, err
	}
	for _, c := range m.roots {
		if !slices.ContainsFunc(cas, c.Equal) && !(t.Removes() && Fingerprint(c) == t.Drop) {
			cas = append(cas, c)
		}
	}
	b := fmt.Appendf(nil, "%s%d\n", trustLine, t.Number)
	for _, c := range cas {
		b = append(b, encodeCert(c.Raw)...)
	}
	return b, nil
}

// appliedTrust is the newest Trust of an Identity.
type appliedTrust struct {
	signed SignedTrust
	trust  *Trust
}

// ApplyTrust verifies s with the present CAs. If s is newer than the Trust in the
// CA file, ApplyTrust replaces that file and uses it. An older s has no effect. It
// is an error if the local certificate would not be valid any more. No connection
// is closed while the peer has a certificate of a CA that stays, or can show one
// within a minute. ApplyTrust waits for a call of IfTrust, and at most 2 s for
// another process that replaces the file.
func (i *Identity) ApplyTrust(s SignedTrust) error {
	i.applying.Lock()
	defer i.applying.Unlock()
	i.reload.Lock()
	defer i.reload.Unlock()
	old := i.trust.Load()
	if old != nil && bytes.Equal(old.signed.Content, s.Content) && i.current.Load().trust >= old.trust.Number {
		return nil
	}
	if err := i.reread(); err != nil {
		return err
	}
	m := i.current.Load()
	t, err := ParseTrust(s, m.roots)
	if err != nil {
		return err
	}
	if t.Number < m.trust || old != nil && (t.Number < old.trust.Number ||
		t.Number == old.trust.Number && !bytes.Equal(old.signed.Content, s.Content)) {
		return nil
	}
	if t.Number > m.trust {
		if err := i.replaceCAs(t); err != nil {
			return err
		}
	}
	i.trust.Store(&appliedTrust{s, t})
	i.trusts.Notify()
	return nil
}

// IfTrust calls f while the number of Trust is number, and otherwise returns
// ErrTrustChanged. ApplyTrust waits until f has ended.
func (i *Identity) IfTrust(number uint64, f func() error) error {
	i.applying.Lock()
	defer i.applying.Unlock()
	if t, _, _ := i.Trust(); t.Number != number {
		return ErrTrustChanged
	}
	return f()
}

// ErrTrustChanged discards a certificate that was requested before the last change
// of the Trust: it may be below a CA that is removed next.
var ErrTrustChanged = errors.New("the trusted CAs have changed during the request")

// reread uses the files as they are now. The caller holds i.reload.
func (i *Identity) reread() error {
	raw, err := readRaw(i.files)
	if err != nil {
		return err
	}
	changed, err := i.reloadCredentials(raw)
	if changed {
		i.trustChanged()
		i.conns.refreshAll(time.Now())
	}
	return err
}

// lockCAs locks the CA file, which processes of one machine share. The lock ends
// when the caller closes the result.
func (i *Identity) lockCAs() (lock io.Closer, err error) {
	dir, name := filepath.Split(i.files.CA)
	for range 200 {
		if lock, err = dirlock.Lock(filepath.Clean(dir), name+".lock"); !errors.Is(err, dirlock.ErrInUse) {
			break
		}
		time.Sleep(10 * time.Millisecond) // a replacement takes some milliseconds
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w; this process must be able to create files in %s", i.files.CA, err, dir)
	}
	return lock, nil
}

// replaceCAs replaces the CA file, unless another process has done so. The caller
// holds i.reload.
func (i *Identity) replaceCAs(t *Trust) error {
	lock, err := i.lockCAs()
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := i.reread(); err != nil {
		return err
	}
	m := i.current.Load()
	if t.Number <= m.trust {
		return nil
	}
	raw, err := readRaw(i.files)
	if err != nil {
		return err
	}
	if raw.ca, err = m.caFile(t); err != nil {
		return err
	}
	if _, err := i.parse(raw); err != nil {
		return fmt.Errorf("cannot use the trusted CAs of change %d: %w; replace the certificate first", t.Number, err)
	}
	if err := atomicfile.WriteFile(i.files.CA, raw.ca, 0o644); err != nil {
		return fmt.Errorf("write %s: %w; this process must be able to create files in %s", i.files.CA, err,
			filepath.Dir(i.files.CA))
	}
	if _, err := i.reloadCredentials(raw); err != nil {
		return err
	}
	i.logger.Info("trusted CAs changed", "ca", i.files.CA, "number", t.Number, "phase", string(t.Phase), "keep", t.Keep,
		"drop", t.Drop)
	i.trustChanged()
	i.conns.refreshAll(time.Now())
	return nil
}

// CheckTrust returns the content of s, or the reason why ApplyTrust would refuse
// or ignore it.
func (i *Identity) CheckTrust(s SignedTrust) (*Trust, error) {
	m := i.current.Load()
	t, err := ParseTrust(s, m.roots)
	if err != nil {
		return nil, err
	}
	if t.Number < m.trust {
		return nil, fmt.Errorf("change %d of the trusted CAs is not newer than change %d, which is in the CA file",
			t.Number, m.trust)
	}
	if old := i.trust.Load(); old != nil && old.trust.Number >= t.Number && !bytes.Equal(old.signed.Content, s.Content) {
		return nil, fmt.Errorf("change %d of the trusted CAs is not newer than change %d, which is in force", t.Number,
			old.trust.Number)
	}
	return t, nil
}

// Trust returns the newest Trust of ApplyTrust. ok is false if there is none.
func (i *Identity) Trust() (t Trust, s SignedTrust, ok bool) {
	if a := i.trust.Load(); a != nil {
		return *a.trust, a.signed, true
	}
	return Trust{}, SignedTrust{}, false
}

// TrustChanged returns a channel that is closed when Trust changes.
func (i *Identity) TrustChanged() <-chan struct{} { return i.trusts.Wait() }

// CAs returns the fingerprints of the trusted CAs.
func (i *Identity) CAs() (all []string) {
	for _, c := range i.current.Load().roots {
		all = append(all, Fingerprint(c))
	}
	return all
}

// RootOf returns the fingerprint of a trusted CA that the certificate of a peer,
// followed by its intermediates, is below, or "". Of several, it returns the
// issuer of Trust if that is one.
func (i *Identity) RootOf(certs []*x509.Certificate) (root string) {
	m := i.current.Load()
	now := time.Now()
	if end := certs[0].NotAfter; now.After(end) {
		now = end
	}
	chains, err := verifyFor(certs, poolOf(slices.Concat(m.roots, m.retired)), x509.ExtKeyUsageAny, now)
	if err != nil {
		return ""
	}
	t, _, _ := i.Trust()
	for _, chain := range chains {
		if f := Fingerprint(chain[len(chain)-1]); root == "" || f == t.Issuer {
			root = f
		}
	}
	return root
}

// MissingRoot returns the issuer of Trust if the local certificate is not below
// it yet, and "" otherwise.
func (i *Identity) MissingRoot() string {
	t, _, ok := i.Trust()
	if !ok || i.RootOf(i.current.Load().chain) == t.Issuer {
		return ""
	}
	return t.Issuer
}

// CAOf returns an error unless c is a CA of datacenter dc alone, as CreateCA
// creates it without Permit.
func CAOf(c *x509.Certificate, dc, domain string) error {
	want := []string{dc + "." + domain, "localhost"}
	got := slices.Clone(c.PermittedDNSDomains)
	slices.Sort(got)
	slices.Sort(want)
	if !c.IsCA || !c.MaxPathLenZero || !slices.Equal(got, want) {
		return fmt.Errorf("%s is not the CA of datacenter %s alone; it permits %v", title(c), dc, c.PermittedDNSDomains)
	}
	return nil
}
