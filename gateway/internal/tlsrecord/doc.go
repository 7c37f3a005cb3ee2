// SPDX-License-Identifier: MPL-2.0

// Package tlsrecord reads the headers of TLS records (RFC 8446, section 5) and
// describes first bytes that are not TLS.
//
// [Size] returns the size of the record at the start of a buffer. [Detect]
// names the protocol of other bytes, for error messages. Both are pure.
package tlsrecord
