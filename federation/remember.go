// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// remembered are the WAN addresses that a datacenter's gateways were ever known to have, by datacenter. They are the last to be
// dialed: for a server that was down, or cut off, while addresses changed, an old one may be all there is.
type remembered map[string]map[string]memory

// memory is what is kept of one address.
type memory struct {
	Known  time.Time `json:"known"`           // when somebody last named it
	Worked time.Time `json:"worked,omitzero"` // when this server last reached the datacenter by it; zero: never, or only its gateways do

	written time.Time // when the file last had it
}

// last is when something last spoke for the address.
func (m memory) last() time.Time {
	if m.Worked.After(m.Known) {
		return m.Worked
	}
	return m.Known
}

const (
	// maxRemembered bounds the addresses of one datacenter: those that were named longest ago go, but
	maxRemembered = 16
	// keepWorked of them, those that worked last, stay, however many newer ones come that never work.
	keepWorked = 8
	// rememberFor is how long an address is kept after it was last known. The one that worked last is kept for ever, as long
	// as the datacenter is one of the federation.
	rememberFor = 30 * 24 * time.Hour
	// rememberStep is how old a time on disk may be before it is written again.
	rememberStep = 24 * time.Hour
)

// note records that addresses are known now, by datacenter, and when addresses last worked. It says whether that is worth
// writing to disk.
func (r remembered) note(known map[string][]string, worked map[string]map[string]time.Time, now time.Time) (changed bool) {
	for dc, addrs := range known {
		if r[dc] == nil {
			r[dc] = map[string]memory{}
		}
		for _, addr := range addrs {
			m := r[dc][addr]
			m.Known = now
			r[dc][addr] = m
		}
		for addr, at := range worked[dc] {
			m, had := r[dc][addr]
			if !had {
				m.Known = at
			}
			if at.After(m.Worked) {
				changed = changed || m.Worked.IsZero()
				m.Worked = at
			}
			r[dc][addr] = m
		}
	}
	for dc, addrs := range r {
		_, named := known[dc]
		changed = r.forget(dc, named, now) || changed
		for _, m := range addrs {
			changed = changed || m.last().Sub(m.written) >= rememberStep
		}
	}
	return changed
}

// forget drops the addresses of dc that are too old, and those that are too many. named says that dc is one of the federation.
func (r remembered) forget(dc string, named bool, now time.Time) (changed bool) {
	lastWorked := r.byTime(dc, func(m memory) time.Time { return m.Worked })
	worked := map[string]bool{}
	for i, addr := range lastWorked {
		worked[addr] = i < keepWorked && !r[dc][addr].Worked.IsZero()
	}
	oldestFirst := r.byTime(dc, memory.last)
	slices.Reverse(oldestFirst)
	for _, addr := range oldestFirst {
		old := now.Sub(r[dc][addr].last()) >= rememberFor && (!named || !worked[addr] || addr != lastWorked[0])
		if old || len(r[dc]) > maxRemembered && !worked[addr] {
			delete(r[dc], addr)
			changed = true
		}
	}
	if len(r[dc]) == 0 && !named {
		delete(r, dc)
	}
	return changed
}

// byTime lists a datacenter's addresses, those with the latest time first.
func (r remembered) byTime(dc string, of func(memory) time.Time) []string {
	return slices.SortedFunc(maps.Keys(r[dc]), func(a, b string) int {
		return cmp.Or(of(r[dc][b]).Compare(of(r[dc][a])), cmp.Compare(b, a))
	})
}

// of lists a datacenter's addresses, the one that something spoke for last first.
func (r remembered) of(dc string) []string { return r.byTime(dc, memory.last) }

// save replaces the file in one step.
func (r remembered) save(path string, now time.Time) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode known addresses: %w", err)
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write known addresses: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(fmt.Errorf("write known addresses: %w", err), os.Remove(tmp))
	}
	for _, addrs := range r {
		for addr, m := range addrs {
			m.written = now
			addrs[addr] = m
		}
	}
	return nil
}

// loadRemembered reads the file; none is an empty one. What it says is checked like anything else that is dialed.
func loadRemembered(path string) (remembered, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return remembered{}, nil
	}
	if err != nil {
		return remembered{}, fmt.Errorf("read known addresses: %w", err)
	}
	r := remembered{}
	if err := json.Unmarshal(b, &r); err != nil {
		return remembered{}, fmt.Errorf("known addresses in %s are damaged and forgotten: %w", filepath.Base(path), err)
	}
	if r == nil { // "null"
		r = remembered{}
	}
	for dc, addrs := range r {
		if addrs == nil {
			r[dc] = map[string]memory{}
		}
		maps.DeleteFunc(addrs, func(addr string, _ memory) bool { return len(parseHint(addr)) != 1 })
		for addr, m := range addrs {
			m.written = m.last()
			addrs[addr] = m
		}
	}
	return r, nil
}
