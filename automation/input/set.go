// SPDX-License-Identifier: MPL-2.0

package input

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Set has the value of each variable as canonical JSON: objects have sorted
// keys, and equal values have equal bytes. A Set and its values are immutable.
type Set map[string]json.RawMessage

// Digest returns the hexadecimal SHA-256 of the set.
func (s Set) Digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(h, "%s\x00%d\x00", name, len(s[name]))
		h.Write(s[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Unite returns an object with the members of both objects. For a name that
// both have, the member of b counts.
func Unite(a, b json.RawMessage) (json.RawMessage, error) {
	var all map[string]json.RawMessage
	for _, object := range []json.RawMessage{a, b} {
		if err := json.Unmarshal(object, &all); err != nil {
			return nil, fmt.Errorf("unite values of a variable: %w", err)
		}
	}
	return json.Marshal(all)
}
