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
)

// remembered are the WAN addresses that a datacenter's gateways were ever known to have, by datacenter. They are the last to be
// dialed: for a server that was down, or cut off, while addresses changed, an old one may be all there is.
type remembered map[string][]memory

// memory is what is kept of one address.
type memory struct {
	addr   string
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

// get is what is kept of an address: nothing is the zero memory.
func (r remembered) get(dc, addr string) memory {
	if i := r.find(dc, addr); i >= 0 {
		return r[dc][i]
	}
	return memory{}
}

func (r remembered) find(dc, addr string) int {
	return slices.IndexFunc(r[dc], func(m memory) bool { return m.addr == addr })
}

// entry gives what is kept of an address, to be changed. had says that it was kept before.
func (r remembered) entry(dc, addr string) (m *memory, had bool) {
	i := r.find(dc, addr)
	if had = i >= 0; !had {
		i = len(r[dc])
		r[dc] = append(slices.Clip(r[dc]), memory{addr: addr})
	}
	return &r[dc][i], had
}

// note records the addresses that are known now, and when addresses last worked. It says whether that is worth writing to disk.
func (r remembered) note(known map[string]*entry, worked map[string]map[string]time.Time, now time.Time) (changed bool) {
	for dc, e := range known {
		for _, addr := range e.known {
			m, _ := r.entry(dc, addr)
			m.Known = now
		}
		for addr, at := range worked[dc] {
			m, had := r.entry(dc, addr)
			if !had {
				m.Known = at
			}
			if at.After(m.Worked) {
				changed = changed || m.Worked.IsZero()
				m.Worked = at
			}
		}
	}
	for dc := range r {
		changed = r.forget(dc, known[dc] != nil, now) || changed
		for _, m := range r[dc] {
			changed = changed || m.last().Sub(m.written) >= rememberStep
		}
	}
	return changed
}

// forget drops the addresses of dc that are too old, and those that are too many. named says that dc is one of the federation.
func (r remembered) forget(dc string, named bool, now time.Time) (changed bool) {
	tooOld := func(m memory) bool { return now.Sub(m.last()) >= rememberFor }
	if len(r[dc]) > maxRemembered || slices.ContainsFunc(r[dc], tooOld) {
		changed = r.drop(dc, named, tooOld)
	}
	if len(r[dc]) == 0 && !named {
		delete(r, dc)
	}
	return changed
}

func (r remembered) drop(dc string, named bool, tooOld func(memory) bool) (changed bool) {
	lastWorked := r.byTime(dc, func(m memory) time.Time { return m.Worked })
	worked := map[string]bool{}
	for i, addr := range lastWorked {
		worked[addr] = i < keepWorked && !r.get(dc, addr).Worked.IsZero()
	}
	oldestFirst := r.byTime(dc, memory.last)
	slices.Reverse(oldestFirst)
	for _, addr := range oldestFirst {
		old := tooOld(r.get(dc, addr)) && (!named || !worked[addr] || addr != lastWorked[0])
		if old || len(r[dc]) > maxRemembered && !worked[addr] {
			i := r.find(dc, addr)
			r[dc] = slices.Delete(r[dc], i, i+1)
			changed = true
		}
	}
	return changed
}

// byTime lists a datacenter's addresses, those with the latest time first.
func (r remembered) byTime(dc string, of func(memory) time.Time) []string {
	if len(r[dc]) == 0 {
		return nil
	}
	ms := slices.Clone(r[dc])
	slices.SortFunc(ms, func(a, b memory) int { return cmp.Or(of(b).Compare(of(a)), cmp.Compare(b.addr, a.addr)) })
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.addr
	}
	return out
}

// of lists a datacenter's addresses, the one that something spoke for last first.
func (r remembered) of(dc string) []string { return r.byTime(dc, memory.last) }

// save replaces the file in one step.
func (r remembered) save(path string, now time.Time) error {
	file := make(map[string]map[string]memory, len(r))
	for dc, ms := range r {
		file[dc] = make(map[string]memory, len(ms))
		for _, m := range ms {
			file[dc][m.addr] = m
		}
	}
	b, err := json.MarshalIndent(file, "", "  ")
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
	for _, ms := range r {
		for i := range ms {
			ms[i].written = now
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
	var file map[string]map[string]memory
	if err := json.Unmarshal(b, &file); err != nil {
		return remembered{}, fmt.Errorf("known addresses in %s are damaged and forgotten: %w", filepath.Base(path), err)
	}
	r := make(remembered, len(file))
	for dc, addrs := range file {
		r[dc] = nil
		for addr, m := range addrs {
			if len(parseHint(addr)) == 1 {
				m.addr, m.written = addr, m.last()
				r[dc] = append(r[dc], m)
			}
		}
	}
	return r, nil
}
