// SPDX-License-Identifier: MPL-2.0

// Package proxyproto reads and writes the header of the PROXY protocol, version
// 2. A load balancer or gateway sends it first on a connection, to name the
// client. The specification is section 2.2 of HAProxy's proxy-protocol.txt. Only
// the addresses of TCP connections are read; TLVs are skipped.
//
//	source, size, err := proxyproto.Parse(received)
//
// [Parse] reads a header from a buffer. [ReadFrom] reads one from a connection,
// and no byte after it. [Append] writes one. A header has at most [MaxSize]
// bytes. The caller decides which senders it trusts: an unauthenticated peer can
// name any address.
package proxyproto
