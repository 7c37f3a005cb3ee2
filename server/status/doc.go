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
// One pure function evaluates the measurements of the components: the status
// page, the HTTP endpoint and the metrics have its result. Two methods send
// requests and wait for the network. [PrimaryView.WatchOthers] runs at the
// leader. [Reporter.RunReports] requests a report from a datacenter that sends
// nothing to this server, over the paths of this server. It sends at most three
// requests at once, and none while packets arrive. It joins its
// goroutines before it returns. All other methods may be called from any
// goroutine.
package status
