// SPDX-License-Identifier: MPL-2.0

// Package dcrpc makes gRPC calls to servers of the local and of other datacenters.
package dcrpc
