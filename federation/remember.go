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

// remembered are the WAN addresses that a datacenter's gateways were ever known to have, with when they were last known,
// by datacenter. They are the last to be dialed: for a server that was down, or cut off, while addresses changed, an old one
// may be all there is.
type remembered map[string]map[string]time.Time

const (
	// maxRemembered bounds the addresses of one datacenter: the oldest go.
	maxRemembered = 16
	// rememberFor is how long an address is kept after it was last known.
	rememberFor = 30 * 24 * time.Hour
	// rememberStep is how old a time on disk may be before it is written again.
	rememberStep = 24 * time.Hour
)

// note records that addresses are known now. It says whether that is worth writing to disk.
func (r remembered) note(far map[string][]string, now time.Time) (changed bool) {
	for dc, addrs := range far {
		if r[dc] == nil {
			r[dc] = map[string]time.Time{}
		}
		for _, addr := range addrs {
			if now.Sub(r[dc][addr]) >= rememberStep {
				r[dc][addr] = now
				changed = true
			}
		}
		for _, addr := range r.oldest(dc) {
			if len(r[dc]) <= maxRemembered && now.Sub(r[dc][addr]) < rememberFor {
				break
			}
			delete(r[dc], addr)
			changed = true
		}
	}
	return changed
}

func (r remembered) oldest(dc string) []string {
	return slices.SortedFunc(maps.Keys(r[dc]), func(a, b string) int {
		return cmp.Or(r[dc][a].Compare(r[dc][b]), cmp.Compare(a, b))
	})
}

// of lists a datacenter's addresses, the last known first.
func (r remembered) of(dc string) []string {
	out := r.oldest(dc)
	slices.Reverse(out)
	return out
}

// save replaces the file in one step.
func (r remembered) save(path string) error {
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
			r[dc] = map[string]time.Time{}
		}
		maps.DeleteFunc(addrs, func(addr string, _ time.Time) bool { return len(parseHint(addr)) != 1 })
	}
	return r, nil
}
