// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// entriesOf returns the entries of a federation with one datacenter.
func entriesOf(dc string, addrs ...string) map[string]*entry {
	return map[string]*entry{dc: {named: addrs}}
}

// addrs returns the addresses of dc, the most recently used first.
func (c addressCache) addrs(dc string) (out []string) {
	for _, a := range c.byUse(dc) {
		out = append(out, a.addr)
	}
	return out
}

func TestAddressCache(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "addresses.json")
	c := addressCache{}
	first := entriesOf("dc1", "198.51.100.1:8443")
	if !c.record(first, nil, now) {
		t.Error("record() of a new address = false, want true")
	}
	if err := c.save(path, now); err != nil {
		t.Fatal(err)
	}
	if c.record(first, nil, now.Add(time.Hour)) {
		t.Error("record() of the same address an hour later = true, want false")
	}
	if !c.record(first, nil, now.Add(cacheTimeStep)) {
		t.Error("record() of the same address a day later = false, want true")
	}
	for i := range 20 {
		now = now.Add(time.Minute)
		c.record(entriesOf("dc1", fmt.Sprintf("198.51.100.%d:8443", i+2)), nil, now.Add(cacheTimeStep))
	}
	if got := c.addrs("dc1"); len(got) != maxCached || got[0] != "198.51.100.21:8443" {
		t.Errorf("addrs() = %v, want %d with 198.51.100.21 first", got, maxCached)
	}

	if err := c.save(path, now); err != nil {
		t.Fatal(err)
	}
	if loaded, err := loadAddressCache(path); err != nil || len(loaded.addrs("dc1")) != 0 {
		t.Errorf("loaded addrs() = %v, %v, want none: no address worked", loaded.addrs("dc1"), err)
	}
	for _, addr := range c["dc1"] {
		addr.Worked = addr.Known
	}
	if err := c.save(path, now); err != nil {
		t.Fatal(err)
	}
	loaded, err := loadAddressCache(path)
	if err != nil || !slices.Equal(loaded.addrs("dc1"), c.addrs("dc1")) {
		t.Errorf("loaded addrs() = %v, %v, want %v", loaded.addrs("dc1"), err, c.addrs("dc1"))
	}
	c = addressCache{"dc1": c["dc1"][:1]}
	c["dc1"][0].Worked = time.Time{}
	c.record(entriesOf("dc1"), nil, now.Add(cacheTTL+cacheTimeStep))
	if got := c.addrs("dc1"); len(got) != 0 {
		t.Errorf("addrs() after cacheTTL = %v, want none", got)
	}
}

// Newer addresses that never worked do not evict the addresses that worked
// last.
func TestAddressCache_KeepsWorkingAddresses(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "addresses.json")
	c := addressCache{}
	workedAt := map[string]map[string]time.Time{"dc1": {}}
	var worked []string
	for i := range keepWorked + 3 {
		addr := fmt.Sprintf("198.51.100.%d:8443", i)
		worked = append(worked, addr)
		workedAt["dc1"][addr] = now.Add(time.Duration(i) * time.Second)
	}
	last := worked[len(worked)-1]
	if !c.record(entriesOf("dc1", worked[0]), workedAt, now) {
		t.Error("record() of the first success = false, want true")
	}
	for i := range 500 {
		now = now.Add(time.Hour)
		c.record(entriesOf("dc1", fmt.Sprintf("203.0.113.%d:%d", i%250, 1+i/250)), nil, now)
		if i == 250 { // a restart of the server
			if err := c.save(path, now); err != nil {
				t.Fatal(err)
			}
			var err error
			if c, err = loadAddressCache(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := c.addrs("dc1")
	if len(got) != maxCached {
		t.Errorf("addrs() has %d addresses, want %d", len(got), maxCached)
	}
	for i, addr := range worked {
		if kept, want := slices.Contains(got, addr), i >= len(worked)-keepWorked; kept != want {
			t.Errorf("addrs() contains %s, number %d of %d that worked: %v, want %v", addr, i, len(worked), kept, want)
		}
	}
	c.record(entriesOf("dc1"), nil, now.Add(10*cacheTTL))
	if got := c.addrs("dc1"); !slices.Equal(got, []string{last}) {
		t.Errorf("addrs() after 10 cacheTTL = %v, want only %s, which worked last", got, last)
	}
	c.record(entriesOf("dc2"), nil, now.Add(10*cacheTTL))
	if got := c["dc1"]; got != nil {
		t.Errorf("addresses of a datacenter outside the federation = %v, want none", got)
	}
}

func TestLoadAddressCache_InvalidFile(t *testing.T) {
	dir := t.TempDir()
	if c, err := loadAddressCache(filepath.Join(dir, "absent")); err != nil || len(c) != 0 {
		t.Errorf("loadAddressCache() without a file = %v, %v, want an empty cache", c, err)
	}
	for i, content := range []string{"", "{", `{"dc1": 1}`, "[]"} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := loadAddressCache(path); err == nil || c == nil {
			t.Errorf("loadAddressCache() of %q = %v, %v, want an empty cache and an error", content, c, err)
		}
	}
	path := filepath.Join(dir, "invalid-addresses")
	content := `{"dc1": {"nonsense": {"known": "2026-01-01T00:00:00Z"}, "198.51.100.2:8443": null, ` +
		`"198.51.100.1:8443": {"worked": "2026-01-01T00:00:00Z"}, "198.51.100.3:8443": {"known": "2026-01-01T00:00:00Z"}}, ` +
		`"dc2": null}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := loadAddressCache(path)
	if err != nil || !slices.Equal(c.addrs("dc1"), []string{"198.51.100.1:8443"}) {
		t.Errorf("loadAddressCache() of invalid addresses = %v, %v, want the valid one", c, err)
	}
	c.record(entriesOf("dc2", "198.51.100.2:8443"), nil, time.Now()) // must not panic for null
}
