// SPDX-License-Identifier: MPL-2.0

// Package tlsutil makes, loads, reloads and explains the certificates of wanfed, and says who a verified peer is.
package tlsutil
