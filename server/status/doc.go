// SPDX-License-Identifier: MPL-2.0

// Package status reports what a server knows: the state of its components, of its
// datacenter and of the federation.
//
// A [Reporter] answers the status page and the read-only endpoints of the HTTP
// API. An entry that is not in order names the cause and the remedy. A [Collector]
// reads the counters of all components for Prometheus. A [PrimaryView] knows which
// datacenter is the primary, and which servers disagree.
//
// Nothing here is measured by the package: it reads what the components have
// measured, without waiting for the network. It starts no goroutine. Only
// [PrimaryView.WatchOthers], which the leader runs, sends requests. All methods may
// be called from any goroutine.
package status
