// SPDX-License-Identifier: MPL-2.0

// Package proxyproto reads and writes headers of the PROXY protocol, version 2.
// A load balancer or gateway sends the header at the start of a connection. The
// header has the address of the client. The specification is section 2.2 of
// HAProxy's proxy-protocol.txt. Only addresses of TCP connections are read.
// TLVs (extension fields) are skipped.
//
//	source, size, err := proxyproto.Parse(received)
//
// A header has at most [MaxSize] bytes, and a longer one is an error. Parse
// keeps no reference to its argument.
//
// The caller decides which senders it trusts, because an unauthenticated peer
// can send any address.
package proxyproto
