// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	k := NewKey()
	if got, err := ParseKey(" " + k.Base64() + "\n"); err != nil || got != k {
		t.Errorf("ParseKey(Base64()) = %v, %v, want %v", got, err, k)
	}
	for _, s := range []string{"", "no base64!", "MTIzNDU2Nzg5MDEyMzQ1Ng==", k.Base64() + "AAAA", k.Base64()[:43]} {
		if _, err := ParseKey(s); err == nil || s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("ParseKey(%q) = %v, want an error that does not quote it", s, err)
		}
	}
}

// Printing, logging or marshalling a key shows only its fingerprint.
func TestKey_PrintsFingerprint(t *testing.T) {
	k := NewKey()
	r := Keyring{Version: 1, Keys: []Key{k}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("key", "key", k, "keyring", r)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("key", "key", k, "keyring", r)
	js, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(js) + fmt.Sprintf("%v %+v %#v %x %s %q %d %v %+v", k, k, k, k, k, k, k, r, &r)
	for _, form := range []string{k.Base64(), fmt.Sprintf("%x", k.b), fmt.Sprint(k.b[:3])[1:]} {
		if strings.Contains(all, form) {
			t.Errorf("output = %s, want no form of the key", all)
		}
	}
	if n := strings.Count(all, k.Fingerprint()); n < 10 {
		t.Errorf("output has the fingerprint %d times, want at least 10: %s", n, all)
	}
}

func TestKeyring(t *testing.T) {
	a, b, c := NewKey(), NewKey(), NewKey()
	r := Keyring{Keys: []Key{a}}
	step := func(call string, next Keyring, err error, version uint64, want ...Key) {
		t.Helper()
		if err != nil || next.Version != version || !slices.Equal(next.Keys, want) {
			t.Fatalf("%s = %v, %v, want version %d and %v", call, next, err, version, want)
		}
		if version > r.Version && (!next.Supersedes(r) || r.Supersedes(next)) {
			t.Errorf("Supersedes() after %s = %v, and %v reversed, want true and false",
				call, next.Supersedes(r), r.Supersedes(next))
		}
		r = next
	}
	next, err := r.Add(b)
	step("Add(b)", next, err, 1, a, b)
	next, err = r.Add(b)
	step("second Add(b)", next, err, 1, a, b)
	next, err = r.Use(b)
	step("Use(b)", next, err, 2, b, a)
	next, err = r.Use(b)
	step("second Use(b)", next, err, 2, b, a)
	if _, err := r.Remove(b); err == nil || !strings.Contains(err.Error(), "is the primary") {
		t.Errorf("Remove(primary) = %v, want an error with \"is the primary\"", err)
	}
	next, err = r.Remove(c)
	step("Remove(unknown)", next, err, 2, b, a)
	next, err = r.Remove(a)
	step("Remove(a)", next, err, 3, b)
	if _, err := r.Use(c); !errors.Is(err, ErrKeyNotFound) {
		t.Errorf("Use(unknown) = %v, want ErrKeyNotFound", err)
	}
	for range MaxKeys - 1 {
		if r, err = r.Add(NewKey()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Add(NewKey()); err == nil {
		t.Errorf("Add() of key %d = nil, want an error", MaxKeys+1)
	}
}

func TestKeyring_Find(t *testing.T) {
	a, b := NewKey(), NewKey()
	r := Keyring{Keys: []Key{a}}
	for _, s := range []string{a.Base64(), a.Fingerprint()} {
		if k, err := r.Find(s); err != nil || k != a {
			t.Errorf("Find(%q) = %v, %v, want %v", s, k, err, a)
		}
	}
	for _, s := range []string{b.Base64(), b.Fingerprint()} {
		_, err := r.Find(s)
		if !errors.Is(err, ErrKeyNotFound) || strings.Contains(err.Error(), b.Base64()) ||
			!strings.Contains(err.Error(), b.Fingerprint()) {
			t.Errorf("Find(unknown) = %v, want ErrKeyNotFound with the fingerprint", err)
		}
	}
	part := a.Base64()[:16]
	if _, err := r.Find(part); err == nil || strings.Contains(err.Error(), part) {
		t.Errorf("Find(part of a key) = %v, want an error that does not quote it", err)
	}
}

// Exactly one of two different keyrings supersedes the other, unless their
// version is 0.
func TestKeyring_SupersedesIsTotalOrder(t *testing.T) {
	a, b := NewKey(), NewKey()
	keyrings := []Keyring{{1, []Key{a}}, {1, []Key{b}}, {1, []Key{a, b}}, {2, []Key{a}}, {2, []Key{b, a}}}
	for i, x := range keyrings {
		for j, y := range keyrings {
			if (i != j) != (x.Supersedes(y) != y.Supersedes(x)) || i == j && x.Supersedes(y) {
				t.Errorf("Supersedes() of %v and %v = %v, of %[2]v and %[1]v = %v; want true once, and false for equal keyrings",
					x, y, x.Supersedes(y), y.Supersedes(x))
			}
		}
	}
	x, y := Keyring{Keys: []Key{a}}, Keyring{Keys: []Key{b}}
	if x.Supersedes(y) || y.Supersedes(x) {
		t.Error("Supersedes() = true for keyrings of version 0, want false")
	}
}

func TestKeyring_Encrypt(t *testing.T) {
	first, second, other := NewKey(), NewKey(), NewKey()
	r := Keyring{5, []Key{second, first}}
	encrypted, err := r.Encrypt(nil)
	if err != nil || len(encrypted) != 2 {
		t.Fatalf("Encrypt(nil) = %d keyrings, %v, want 2", len(encrypted), err)
	}
	for _, k := range r.Keys {
		got, err := (Keyring{Keys: []Key{other, k}}).Decrypt(encrypted)
		if err != nil || !slices.Equal(got.Keys, r.Keys) || got.Version != 5 {
			t.Errorf("Decrypt() with key %s = %v, %v, want %v", k, got, err, r)
		}
	}
	if _, err := (Keyring{Keys: []Key{other}}).Decrypt(encrypted); !errors.Is(err, ErrNoSharedKey) {
		t.Errorf("Decrypt() without a shared key = %v, want ErrNoSharedKey", err)
	}
	forged := EncryptedKeyring{other.Fingerprint(), encrypted[0].Ciphertext}
	if _, err := (Keyring{Keys: []Key{other}}).Decrypt([]EncryptedKeyring{forged}); err == nil {
		t.Error("Decrypt() with a false fingerprint = nil, want an error")
	}
	some, err := r.Encrypt([]string{other.Fingerprint(), first.Fingerprint()})
	if err != nil || len(some) != 1 || some[0].Fingerprint != first.Fingerprint() {
		t.Errorf("Encrypt() for two fingerprints = %v, %v, want one keyring for %s", some, err, first)
	}
}

func FuzzDecrypt(f *testing.F) {
	k := NewKey()
	encrypted, err := Keyring{3, []Key{k, NewKey()}}.Encrypt([]string{k.Fingerprint()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encrypted[0].Ciphertext)
	f.Add([]byte{})
	f.Add(make([]byte, 12))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := (Keyring{Keys: []Key{k}}).Decrypt([]EncryptedKeyring{{k.Fingerprint(), b}})
		if err == nil && len(r.Keys) != 2 {
			t.Errorf("Decrypt() = %v, want an error or the keyring of the corpus", r)
		}
	})
}

func FuzzDecodeKeyring(f *testing.F) {
	b, err := Keyring{3, []Key{NewKey(), NewKey()}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte(`{"version":1,"keys":[]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeKeyring(b)
		if err != nil {
			return
		}
		encoded, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeKeyring(encoded)
		if err != nil || again.Version != r.Version || !slices.Equal(again.Keys, r.Keys) {
			t.Errorf("decodeKeyring(encode()) = %v, %v, want %v", again, err, r)
		}
	})
}
