// SPDX-License-Identifier: MPL-2.0

// Package proxyproto reads and writes the header of the PROXY protocol, version 2, by which a balancer or a gateway tells the one
// behind it who the client of a connection is. It is in HAProxy's proxy-protocol.txt, section 2.2. Only what concerns TCP is
// taken, and of TLVs nothing. Whom to believe is left to the caller: a header from a stranger says whatever he likes.
//
// [Parse] is for callers that have a buffer of their own; [ReadFrom] takes a header, and no byte more, off a connection. Both see at most
// [MaxSize] bytes. [Append] writes one.
package proxyproto
