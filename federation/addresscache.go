// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// addressCache contains the current and former WAN addresses of each
// datacenter's gateways. The dialer tries them last. They may be the only
// addresses of a server that was down or partitioned while addresses changed.
type addressCache map[string][]cachedAddress

type cachedAddress struct {
	addr string
	// Known is the last time at which a source contained the address.
	Known time.Time `json:"known"`
	// Worked is the last time at which this server reached the datacenter
	// through the address. Zero: this server never did, even if gateways did.
	Worked time.Time `json:"worked,omitzero"`

	written time.Time // value of lastUse in the file
}

// lastUse returns the later of Known and Worked.
func (a cachedAddress) lastUse() time.Time {
	if a.Worked.After(a.Known) {
		return a.Worked
	}
	return a.Known
}

const (
	// maxCached limits the addresses of one datacenter. The least recently used
	// addresses are evicted.
	maxCached = 16
	// keepWorked is the number of protected addresses. The addresses that
	// worked last are protected: newer addresses do not evict them.
	keepWorked = 8
	// cacheTTL is the time from the last use of an address to its eviction. The
	// address that worked last is kept as long as the datacenter is part of the
	// federation.
	cacheTTL = 30 * 24 * time.Hour
	// cacheTimeStep limits the age of the times in the file. If the last use of
	// an address is this much later than in the file, the file is written.
	cacheTimeStep = 24 * time.Hour
)

// get returns a cached address, or the zero value.
func (c addressCache) get(dc, addr string) cachedAddress {
	if i := c.find(dc, addr); i >= 0 {
		return c[dc][i]
	}
	return cachedAddress{}
}

func (c addressCache) find(dc, addr string) int {
	return slices.IndexFunc(c[dc], func(a cachedAddress) bool { return a.addr == addr })
}

// getOrAdd returns a pointer to a cached address and reports whether it is new.
func (c addressCache) getOrAdd(dc, addr string) (a *cachedAddress, added bool) {
	i := c.find(dc, addr)
	if added = i < 0; added {
		i = len(c[dc])
		c[dc] = append(slices.Clip(c[dc]), cachedAddress{addr: addr})
	}
	return &c[dc][i], added
}

// record records the named addresses of entries, and the time of the last
// success of each address in worked. It reports whether the file should be
// written.
func (c addressCache) record(
	entries map[string]*entry, worked map[string]map[string]time.Time, now time.Time,
) (changed bool) {
	for dc, e := range entries {
		for _, addr := range e.named {
			a, _ := c.getOrAdd(dc, addr)
			a.Known = now
		}
		for addr, at := range worked[dc] {
			a, added := c.getOrAdd(dc, addr)
			if added {
				a.Known = at
			}
			if at.After(a.Worked) {
				changed = changed || a.Worked.IsZero()
				a.Worked = at
			}
		}
	}
	for dc := range c {
		changed = c.evict(dc, entries[dc] != nil, now) || changed
		for _, a := range c[dc] {
			changed = changed || a.lastUse().Sub(a.written) >= cacheTimeStep
		}
	}
	return changed
}

// evict removes the addresses of dc that are too old or too many. member reports
// whether dc is part of the federation.
func (c addressCache) evict(dc string, member bool, now time.Time) (changed bool) {
	expired := func(a cachedAddress) bool { return now.Sub(a.lastUse()) >= cacheTTL }
	if len(c[dc]) > maxCached || slices.ContainsFunc(c[dc], expired) {
		changed = c.evictFrom(dc, member, expired)
	}
	if len(c[dc]) == 0 && !member {
		delete(c, dc)
	}
	return changed
}

func (c addressCache) evictFrom(dc string, member bool, expired func(cachedAddress) bool) (changed bool) {
	lastWorked := c.sorted(dc, func(a cachedAddress) time.Time { return a.Worked })
	protected := map[string]bool{}
	for i, addr := range lastWorked {
		protected[addr] = i < keepWorked && !c.get(dc, addr).Worked.IsZero()
	}
	oldestFirst := c.addrs(dc)
	slices.Reverse(oldestFirst)
	for _, addr := range oldestFirst {
		drop := expired(c.get(dc, addr)) && (!member || !protected[addr] || addr != lastWorked[0])
		if drop || len(c[dc]) > maxCached && !protected[addr] {
			i := c.find(dc, addr)
			c[dc] = slices.Delete(c[dc], i, i+1)
			changed = true
		}
	}
	return changed
}

// sorted returns the addresses of dc, latest time first.
func (c addressCache) sorted(dc string, timeOf func(cachedAddress) time.Time) []string {
	if len(c[dc]) == 0 {
		return nil
	}
	all := slices.Clone(c[dc])
	slices.SortFunc(all, func(a, b cachedAddress) int {
		return cmp.Or(timeOf(b).Compare(timeOf(a)), cmp.Compare(b.addr, a.addr))
	})
	out := make([]string, len(all))
	for i, a := range all {
		out[i] = a.addr
	}
	return out
}

// addrs returns the addresses of dc, the most recently used first.
func (c addressCache) addrs(dc string) []string { return c.sorted(dc, cachedAddress.lastUse) }

// matches reports whether e was computed from the current addresses of dc.
func (c addressCache) matches(dc string, e *entry) bool {
	unmatched := len(e.remote) - len(e.named)
	for _, a := range c[dc] {
		i := e.remote.find(a.addr)
		if i < 0 || i >= len(e.named) && !e.remote[i].at.Equal(a.lastUse()) {
			return false
		}
		if i >= len(e.named) {
			unmatched--
		}
	}
	return unmatched == 0
}

func (c addressCache) save(path string, now time.Time) error {
	file := make(map[string]map[string]cachedAddress, len(c))
	for dc, all := range c {
		file[dc] = make(map[string]cachedAddress, len(all))
		for _, a := range all {
			file[dc][a.addr] = a
		}
	}
	b, err := json.MarshalIndent(file, "", "  ")
	if err == nil {
		err = atomicfile.WriteFile(path, append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write address cache: %w", err)
	}
	for _, all := range c {
		for i := range all {
			all[i].written = now
		}
	}
	return nil
}

// loadAddressCache reads the file. It returns an empty cache if the file does
// not exist, or together with an error. Invalid addresses are skipped.
func loadAddressCache(path string) (addressCache, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return addressCache{}, nil
	}
	if err != nil {
		return addressCache{}, fmt.Errorf("read address cache: %w", err)
	}
	var file map[string]map[string]cachedAddress
	if err := json.Unmarshal(b, &file); err != nil {
		return addressCache{}, fmt.Errorf("address cache %s is damaged and ignored: %w", filepath.Base(path), err)
	}
	c := make(addressCache, len(file))
	for dc, addrs := range file {
		c[dc] = nil
		for addr, a := range addrs {
			if len(parseGatewayTag(addr)) == 1 {
				a.addr, a.written = addr, a.lastUse()
				c[dc] = append(c[dc], a)
			}
		}
	}
	return c, nil
}
