// SPDX-License-Identifier: MPL-2.0

// Package tlsrecord reads the headers of TLS records (RFC 8446, section 5) and
// describes the first bytes of other protocols.
//
// [Size] returns the size of the record at the start of a buffer. [Detect]
// names the protocol of bytes that are not TLS, for error messages. Both are
// pure.
package tlsrecord
