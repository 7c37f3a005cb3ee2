// SPDX-License-Identifier: MPL-2.0

// Package unit has the systemd units of servers and gateways. "wanfed init",
// "wanfed join" and the packages for Linux distributions install them.
//
//	text := unit.Unit{
//		Command: "server", Program: "/usr/bin/wanfed", Settings: "/etc/wanfed/server.hcl",
//		Data: "/var/lib/wanfed", User: "wanfed",
//	}.String()
//
// The process may write only its data directory and the directory of its settings,
// in which it renews its certificate. It has no capabilities, except a gateway,
// which may listen on a port below 1024.
package unit
