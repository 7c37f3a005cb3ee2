// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/wanfed"
)

func knownOf(dc string, addrs ...string) map[string]*entry {
	return map[string]*entry{dc: {known: addrs}}
}

func TestRemembered(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "addresses.json")
	r := remembered{}
	first := knownOf("dc1", "198.51.100.1:8443")
	if !r.note(first, nil, now) {
		t.Error("a new address is not worth writing")
	}
	if err := r.save(path, now); err != nil {
		t.Fatal(err)
	}
	if r.note(first, nil, now.Add(time.Hour)) {
		t.Error("the same address is worth writing an hour later")
	}
	if !r.note(first, nil, now.Add(rememberStep)) {
		t.Error("the same address is not worth writing a day later")
	}
	for i := range 20 {
		now = now.Add(time.Minute)
		r.note(knownOf("dc1", fmt.Sprintf("198.51.100.%d:8443", i+2)), nil, now.Add(rememberStep))
	}
	if got := r.of("dc1"); len(got) != maxRemembered || got[0] != "198.51.100.21:8443" {
		t.Errorf("remembers %v", got)
	}

	if err := r.save(path, now); err != nil {
		t.Fatal(err)
	}
	back, err := loadRemembered(path)
	if err != nil || !slices.Equal(back.of("dc1"), r.of("dc1")) {
		t.Errorf("read back %v, %v", back.of("dc1"), err)
	}
	r.note(knownOf("dc1"), nil, now.Add(rememberFor+rememberStep))
	if got := r.of("dc1"); len(got) != 0 {
		t.Errorf("still remembers %v", got)
	}
}

// Addresses that never worked, however many, and however much newer, do not push out those that did.
func TestRememberedKeepsWhatWorked(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "addresses.json")
	r := remembered{}
	worked := map[string]map[string]time.Time{"dc1": {}}
	var good []string
	for i := range keepWorked + 3 {
		addr := fmt.Sprintf("198.51.100.%d:8443", i)
		good = append(good, addr)
		worked["dc1"][addr] = now.Add(time.Duration(i) * time.Second)
	}
	last := good[len(good)-1]
	if !r.note(knownOf("dc1", good[0]), worked, now) {
		t.Error("the first success is not worth writing")
	}
	for i := range 500 {
		now = now.Add(time.Hour)
		r.note(knownOf("dc1", fmt.Sprintf("203.0.113.%d:%d", i%250, 1+i/250)), nil, now)
		if i == 250 { // the server starts anew
			if err := r.save(path, now); err != nil {
				t.Fatal(err)
			}
			var err error
			if r, err = loadRemembered(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := r.of("dc1")
	if len(got) != maxRemembered {
		t.Errorf("remembers %d addresses", len(got))
	}
	for i, addr := range good {
		if kept := slices.Contains(got, addr); kept != (i >= len(good)-keepWorked) {
			t.Errorf("%s, which worked as number %d of %d, is kept: %v", addr, i, len(good), kept)
		}
	}
	r.note(knownOf("dc1"), nil, now.Add(10*rememberFor))
	if got := r.of("dc1"); !slices.Equal(got, []string{last}) {
		t.Errorf("long after, %v is left, want the one that worked last: %s", got, last)
	}
	r.note(knownOf("dc2"), nil, now.Add(10*rememberFor))
	if got := r["dc1"]; got != nil {
		t.Errorf("%v is left of a datacenter that is no longer in the federation", got)
	}
}

func TestWorked(t *testing.T) {
	at := time.Unix(9, 0)
	got := worked(AddressBookUpdaterConfig{DC: "dc2", Paths: func() []wanfed.PathStatus {
		return []wanfed.PathStatus{
			{DC: "dc1", Addr: "gw.dc1.example:8443", Remote: "198.51.100.1:8443", LastSuccess: at},
			{DC: "dc1", Addr: "198.51.100.1:8443", Remote: "198.51.100.1:8443", LastSuccess: at.Add(-1)},
			{DC: "dc1", Addr: "198.51.100.2:8443"},
			{DC: "dc1", Addr: "10.0.0.9:8443", Local: true, LastSuccess: at},
			{DC: "dc2", Addr: "10.0.0.5:8300", LastSuccess: at},
		}
	}})
	want := map[string]map[string]time.Time{"dc1": {"gw.dc1.example:8443": at, "198.51.100.1:8443": at}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := worked(AddressBookUpdaterConfig{}); got != nil {
		t.Error(got)
	}
}

func TestLoadRememberedOfWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	if r, err := loadRemembered(filepath.Join(dir, "absent")); err != nil || len(r) != 0 {
		t.Errorf("of no file: %v, %v", r, err)
	}
	for i, content := range []string{"", "{", `{"dc1": 1}`, "[]"} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := loadRemembered(path); err == nil || r == nil {
			t.Errorf("of %q: %v, %v", content, r, err)
		}
	}
	path := filepath.Join(dir, "odd")
	if err := os.WriteFile(path, []byte(`{"dc1": {"nonsense": {"known": "2026-01-01T00:00:00Z"}, "198.51.100.1:8443": {"known": "2026-01-01T00:00:00Z"}}, "dc2": null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := loadRemembered(path)
	if err != nil || !slices.Equal(r.of("dc1"), []string{"198.51.100.1:8443"}) {
		t.Errorf("of odd entries: %v, %v", r, err)
	}
	r.note(knownOf("dc2", "198.51.100.2:8443"), nil, time.Now()) // null must not panic
}
