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
	"github.com/wanfed/wanfed/internal/netaddr"
)

// addressCache contains the current and former WAN addresses of the gateways of
// each datacenter. The dialer tries cached addresses last. They may be the only
// known addresses after a server was down or partitioned.
type addressCache map[string][]*cachedAddress

// cachedAddress is one address in the cache and in the file.
type cachedAddress struct {
	addr string
	// Known is the last time at which a source contained the address.
	Known time.Time `json:"known"`
	// Worked is the last time at which this server reached the datacenter
	// through the address. Zero means never.
	Worked time.Time `json:"worked,omitzero"`

	written time.Time // value of lastUse in the file
}

// lastUse returns the later time of Known and Worked.
func (a *cachedAddress) lastUse() time.Time {
	if a.Worked.After(a.Known) {
		return a.Worked
	}
	return a.Known
}

const (
	// maxCached limits the addresses of one datacenter. The least recently used
	// addresses are evicted.
	maxCached = 16
	// keepWorked is the number of addresses that newer addresses do not evict:
	// the addresses that worked last.
	keepWorked = 8
	// cacheTTL is the time from the last use of an address to its eviction. The
	// address that worked last is kept while the datacenter is part of the
	// federation.
	cacheTTL = 30 * 24 * time.Hour
	// cacheTimeStep is the age from which a time in the file is outdated and
	// the file is written again.
	cacheTimeStep = 24 * time.Hour
)

// find returns a cached address, or nil.
func (c addressCache) find(dc, addr string) *cachedAddress {
	for _, a := range c[dc] {
		if a.addr == addr {
			return a
		}
	}
	return nil
}

// findOrAdd returns a cached address. It adds a new address with the time
// known.
func (c addressCache) findOrAdd(dc, addr string, known time.Time) *cachedAddress {
	a := c.find(dc, addr)
	if a == nil {
		a = &cachedAddress{addr: addr, Known: known}
		c[dc] = append(c[dc], a)
	}
	return a
}

// record adds the addresses of entries that a source other than the cache
// contains (entry.named), and the addresses in worked with the time of their
// last success. It evicts old addresses. It reports whether the file should be
// written.
func (c addressCache) record(
	entries map[string]*entry, worked map[string]map[string]time.Time, now time.Time,
) (changed bool) {
	for dc, e := range entries {
		for _, addr := range e.named {
			c.findOrAdd(dc, addr, now).Known = now
		}
		for addr, at := range worked[dc] {
			if a := c.findOrAdd(dc, addr, at); at.After(a.Worked) {
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

// evict removes the addresses of dc that are too old or too many. member
// reports whether dc is part of the federation.
func (c addressCache) evict(dc string, member bool, now time.Time) (changed bool) {
	expired := func(a *cachedAddress) bool { return now.Sub(a.lastUse()) >= cacheTTL }
	if len(c[dc]) > maxCached || slices.ContainsFunc(c[dc], expired) {
		protected := sortedBy(c[dc], func(a *cachedAddress) time.Time { return a.Worked })
		protected = slices.DeleteFunc(protected, func(a *cachedAddress) bool { return a.Worked.IsZero() })
		protected = protected[:min(len(protected), keepWorked)]
		for _, a := range slices.Backward(c.byUse(dc)) {
			workedLast := len(protected) > 0 && a == protected[0]
			if expired(a) && !(member && workedLast) || len(c[dc]) > maxCached && !slices.Contains(protected, a) {
				c[dc] = slices.DeleteFunc(c[dc], func(other *cachedAddress) bool { return other == a })
				changed = true
			}
		}
	}
	if len(c[dc]) == 0 && !member {
		delete(c, dc)
	}
	return changed
}

// byUse returns the addresses of dc, the most recently used first.
func (c addressCache) byUse(dc string) []*cachedAddress {
	return sortedBy(c[dc], (*cachedAddress).lastUse)
}

// sortedBy returns a sorted copy of all, the latest time first.
func sortedBy(all []*cachedAddress, timeOf func(*cachedAddress) time.Time) []*cachedAddress {
	return slices.SortedFunc(slices.Values(all), func(a, b *cachedAddress) int {
		return cmp.Or(timeOf(b).Compare(timeOf(a)), cmp.Compare(b.addr, a.addr))
	})
}

// matches reports whether e was computed from the current addresses of dc.
func (c addressCache) matches(dc string, e *entry) bool {
	unmatched := len(e.remote) - len(e.named)
	for _, a := range c[dc] {
		if holderOf(e.own, a.addr) != "" {
			continue
		}
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

// save writes the addresses that worked to the file.
func (c addressCache) save(path string, now time.Time) error {
	file := make(map[string]map[string]*cachedAddress, len(c))
	for dc, all := range c {
		file[dc] = make(map[string]*cachedAddress, len(all))
		for _, a := range all {
			if !a.Worked.IsZero() { // any other address may be wrong
				file[dc][a.addr] = a
			}
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
		for _, a := range all {
			a.written = now
		}
	}
	return nil
}

// loadAddressCache reads the file. It skips invalid addresses, and addresses
// that never worked. If the file does not exist, or after an error, the cache
// is empty.
func loadAddressCache(path string) (addressCache, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return addressCache{}, nil
	}
	if err != nil {
		return addressCache{}, fmt.Errorf("read address cache: %w", err)
	}
	var file map[string]map[string]*cachedAddress
	if err := json.Unmarshal(b, &file); err != nil {
		return addressCache{}, fmt.Errorf("address cache %s is damaged and ignored: %w", filepath.Base(path), err)
	}
	c := make(addressCache, len(file))
	for dc, addrs := range file {
		c[dc] = nil
		for addr, a := range addrs {
			if a != nil && !a.Worked.IsZero() && netaddr.CheckHostPort(addr) == nil {
				a.addr, a.written = addr, a.lastUse()
				c[dc] = append(c[dc], a)
			}
		}
	}
	return c, nil
}
