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
		t.Errorf("ParseKey of its own Base64: %v, %v", got, err)
	}
	for _, s := range []string{"", "no base64!", "MTIzNDU2Nzg5MDEyMzQ1Ng==", k.Base64() + "AAAA", k.Base64()[:43]} {
		if _, err := ParseKey(s); err == nil || s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("ParseKey(%q) = %v", s, err)
		}
	}
}

// TestKeyDoesNotShow: whatever prints a key, or what holds it, prints its fingerprint.
func TestKeyDoesNotShow(t *testing.T) {
	k := NewKey()
	ring := Keyring{Version: 1, Keys: []Key{k}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("key", "key", k, "ring", ring)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("key", "key", k, "ring", ring)
	js, err := json.Marshal(ring)
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(js) + fmt.Sprintf("%v %+v %#v %x %s %q %d %v %+v", k, k, k, k, k, k, k, ring, &ring)
	if strings.Contains(all, k.Base64()) || strings.Contains(all, fmt.Sprintf("%x", k.b)) || strings.Contains(all, fmt.Sprint(k.b[:3])[1:]) {
		t.Errorf("the key shows: %s", all)
	}
	if n := strings.Count(all, k.Fingerprint()); n < 10 {
		t.Errorf("the fingerprint shows %d times: %s", n, all)
	}
}

func TestRing(t *testing.T) {
	a, b, c := NewKey(), NewKey(), NewKey()
	r := Keyring{Keys: []Key{a}}
	step := func(what string, next Keyring, err error, version uint64, want ...Key) {
		t.Helper()
		if err != nil || next.Version != version || !slices.Equal(next.Keys, want) {
			t.Fatalf("%s: %v, %v; want version %d and %v", what, next, err, version, want)
		}
		if version > r.Version && (!next.Supersedes(r) || r.Supersedes(next)) {
			t.Errorf("%s: which is newer?", what)
		}
		r = next
	}
	next, err := r.Add(b)
	step("install", next, err, 1, a, b)
	next, err = r.Add(b)
	step("install again", next, err, 1, a, b)
	next, err = r.Use(b)
	step("use", next, err, 2, b, a)
	next, err = r.Use(b)
	step("use again", next, err, 2, b, a)
	if _, err := r.Remove(b); err == nil || !strings.Contains(err.Error(), "is the primary") {
		t.Errorf("removing the primary: %v", err)
	}
	next, err = r.Remove(c)
	step("remove what is not there", next, err, 2, b, a)
	next, err = r.Remove(a)
	step("remove", next, err, 3, b)
	if _, err := r.Use(c); !errors.Is(err, ErrKeyNotFound) {
		t.Errorf("using a key that is not there: %v", err)
	}
	for range MaxKeys - 1 {
		if r, err = r.Add(NewKey()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Add(NewKey()); err == nil {
		t.Errorf("%d keys were taken", MaxKeys+1)
	}
}

func TestRingFind(t *testing.T) {
	a, b := NewKey(), NewKey()
	r := Keyring{Keys: []Key{a}}
	for _, s := range []string{a.Base64(), a.Fingerprint()} {
		if k, err := r.Find(s); err != nil || k != a {
			t.Errorf("Find: %v, %v", k, err)
		}
	}
	for _, s := range []string{b.Base64(), b.Fingerprint()} {
		if _, err := r.Find(s); !errors.Is(err, ErrKeyNotFound) || strings.Contains(err.Error(), b.Base64()) || !strings.Contains(err.Error(), b.Fingerprint()) {
			t.Errorf("Find of a key that is not there: %v", err)
		}
	}
	if _, err := r.Find(a.Base64()[:16]); err == nil || strings.Contains(err.Error(), a.Base64()[:16]) {
		t.Errorf("Find of a piece of a key: %v", err)
	}
}

// TestNewer: of two different rings that were changed in the federation, exactly one is newer, whoever asks.
func TestNewer(t *testing.T) {
	a, b := NewKey(), NewKey()
	rings := []Keyring{{1, []Key{a}}, {1, []Key{b}}, {1, []Key{a, b}}, {2, []Key{a}}, {2, []Key{b, a}}}
	for i, x := range rings {
		for j, y := range rings {
			if (i != j) != (x.Supersedes(y) != y.Supersedes(x)) || i == j && x.Supersedes(y) {
				t.Errorf("%v and %v", x, y)
			}
		}
	}
	own := Keyring{Keys: []Key{a}}
	if other := (Keyring{Keys: []Key{b}}); own.Supersedes(other) || other.Supersedes(own) {
		t.Error("a ring that nobody made in the federation is newer than another")
	}
}

func TestSeal(t *testing.T) {
	old, now, other := NewKey(), NewKey(), NewKey()
	ring := Keyring{5, []Key{now, old}}
	sealed, err := ring.Encrypt(nil)
	if err != nil || len(sealed) != 2 {
		t.Fatalf("sealed %d times: %v", len(sealed), err)
	}
	for _, k := range ring.Keys {
		if got, err := (Keyring{Keys: []Key{other, k}}).Decrypt(sealed); err != nil || !slices.Equal(got.Keys, ring.Keys) || got.Version != 5 {
			t.Errorf("opened with %s: %v, %v", k, got, err)
		}
	}
	if _, err := (Keyring{Keys: []Key{other}}).Decrypt(sealed); !errors.Is(err, ErrNoSharedKey) {
		t.Errorf("opened without a key: %v", err)
	}
	forged := EncryptedKeyring{other.Fingerprint(), sealed[0].Ciphertext}
	if _, err := (Keyring{Keys: []Key{other}}).Decrypt([]EncryptedKeyring{forged}); err == nil {
		t.Error("a box that says it is under another key was opened")
	}
	some, err := ring.Encrypt([]string{other.Fingerprint(), old.Fingerprint()})
	if err != nil || len(some) != 1 || some[0].Fingerprint != old.Fingerprint() {
		t.Errorf("sealed for those who have the old key: %v, %v", some, err)
	}
}

func FuzzOpen(f *testing.F) {
	k := NewKey()
	sealed, err := Keyring{3, []Key{k, NewKey()}}.Encrypt([]string{k.Fingerprint()})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed[0].Ciphertext)
	f.Add([]byte{})
	f.Add(make([]byte, 12))
	f.Fuzz(func(t *testing.T, box []byte) {
		if r, err := (Keyring{Keys: []Key{k}}).Decrypt([]EncryptedKeyring{{k.Fingerprint(), box}}); err == nil && len(r.Keys) != 2 {
			t.Errorf("opened %v", r)
		}
	})
}

func FuzzDecodeRing(f *testing.F) {
	b, err := Keyring{3, []Key{NewKey(), NewKey()}}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add([]byte(`{"version":1,"keys":[]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRing(b)
		if err != nil {
			return
		}
		again, err := r.encode()
		if err != nil {
			t.Fatal(err)
		}
		if r2, err := decodeRing(again); err != nil || r2.Version != r.Version || !slices.Equal(r2.Keys, r.Keys) {
			t.Errorf("%v came back as %v, %v", r, r2, err)
		}
	})
}
