// SPDX-License-Identifier: MPL-2.0

// Package netaddr checks addresses and names that operators and peers supply.
package netaddr
