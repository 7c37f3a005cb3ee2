// SPDX-License-Identifier: MPL-2.0

// Package tlsrecord reads the headers of TLS records (RFC 8446, section 5) and
// describes the first bytes of other protocols.
//
//	size, err := tlsrecord.Size(received) // 0, nil: the header is incomplete
//
// [Size] returns the size of the record at the start of a buffer. [Detect]
// names the protocol of bytes that are not TLS, for error messages. Both
// functions keep no state and do not change the buffer. No record is larger
// than [MaxSize], so a caller that buffers one record needs no more memory.
package tlsrecord
