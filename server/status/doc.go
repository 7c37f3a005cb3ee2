// SPDX-License-Identifier: MPL-2.0

// Package status reports the state of a server: its components, its datacenter
// and the federation.
//
// A [Reporter] provides the status page and the read-only endpoints of the HTTP
// API. The entry of a component with a problem names the cause and the remedy.
// For Prometheus, a Reporter also reads the counters of all components. A
// [PrimaryView] reports the primary, and servers that are configured with
// another primary.
//
// The package reads the measurements of the components and makes no
// measurements itself. It does not wait for the network, except in
// [PrimaryView.WatchOthers]. That method sends requests, and only the leader
// runs it. The package starts no goroutine. All methods may be called from any
// goroutine.
package status
