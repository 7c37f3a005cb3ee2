// SPDX-License-Identifier: MPL-2.0

// Package netaddr checks addresses and names that operators and peers supply,
// and the Host header of HTTP requests.
//
//	err := netaddr.CheckHostPort("gw.example:0") // the port is not a number from 1 to 65535
//
// The functions do not resolve names and do not use the network. The error
// names the fault and the right form. It quotes the input.
package netaddr
