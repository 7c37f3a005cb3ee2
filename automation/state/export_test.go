// SPDX-License-Identifier: MPL-2.0

package state

// ParseConsul parses the value of a key of a state in Consul.
func ParseConsul(data []byte) {
	if _, chunked := parseChunkIndex(data); !chunked {
		_, _ = gunzip(data)
	}
}
