// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"encoding/binary"
	"errors"
)

// tagMagic is the byte before tags in a member's metadata; without it, all of that is the tag "role".
const tagMagic = 255

var errTags = errors.New("not a map of strings in msgpack")

// parseTags reads a member's metadata as serf does: a msgpack map of strings.
func parseTags(meta []byte) (map[string]string, error) {
	if len(meta) == 0 || meta[0] != tagMagic {
		return map[string]string{"role": string(meta)}, nil
	}
	n, b, ok := mapHead(meta[1:])
	if !ok || n > len(b) { // each entry has two bytes or more
		return nil, errTags
	}
	tags := make(map[string]string, n)
	for range n {
		var k, v string
		if k, b, ok = takeString(b); !ok {
			return nil, errTags
		}
		if v, b, ok = takeString(b); !ok {
			return nil, errTags
		}
		tags[k] = v
	}
	return tags, nil
}

// mapHead takes the head of a msgpack map: how many entries it has.
func mapHead(b []byte) (n int, rest []byte, ok bool) {
	switch {
	case len(b) >= 1 && b[0]&0xf0 == 0x80:
		return int(b[0] & 0x0f), b[1:], true
	case len(b) >= 3 && b[0] == 0xde:
		return int(binary.BigEndian.Uint16(b[1:])), b[3:], true
	}
	return 0, nil, false // more do not fit
}

// takeString takes a msgpack string, in the old or the new format, or bytes.
func takeString(b []byte) (s string, rest []byte, ok bool) {
	var n, head int
	switch {
	case len(b) >= 1 && b[0]&0xe0 == 0xa0:
		n, head = int(b[0]&0x1f), 1
	case len(b) >= 2 && (b[0] == 0xd9 || b[0] == 0xc4):
		n, head = int(b[1]), 2
	case len(b) >= 3 && (b[0] == 0xda || b[0] == 0xc5):
		n, head = int(binary.BigEndian.Uint16(b[1:])), 3
	default:
		return "", nil, false // longer ones do not fit
	}
	if len(b)-head < n {
		return "", nil, false
	}
	return string(b[head : head+n]), b[head+n:], true
}
