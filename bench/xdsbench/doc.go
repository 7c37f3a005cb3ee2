// SPDX-License-Identifier: MPL-2.0

// Xdsbench compares package gateway/xds with the library go-control-plane. Both
// send the same resources to the same clients.
//
//	go run ./xdsbench -proxies 1000 -datacenters 1000 -rounds 3
//
// A contender is a server in a process of its own. The clients are in the
// calling process. Each client has a connection without TLS, and subscribes as
// Envoy does, in the incremental variant: all clusters, the endpoints of each
// cluster by name, and all listeners.
//
// Contenders:
//
//   - wanfed: proxycfg.Inputs, proxycfg.Manager and xds.Server, as in a server
//   - snapshot: SnapshotCache with a new snapshot for each proxy. All snapshots
//     share the resources.
//   - snapshot-shared: the same. The program also computes the versions once, and
//     all snapshots share them. The library does not document this.
//   - linear: LinearCache for clusters and endpoints, which all proxies share,
//     and SnapshotCache for listeners
//
// Rows:
//
//   - start: processor time of the server and bytes until all clients have all
//     resources
//   - memory: heap and stacks of the server per proxy, with its connection
//   - change: a gateway of one datacenter changes. Bytes to all clients,
//     processor time of the server, and the time until the last client has the
//     change. Medians of the changes of a round, except for processor time,
//     which is the mean. Count is the number of changes.
//   - reconnect: all clients connect again with the versions that they have,
//     after one change
//
// # Limit
//
// A phase (start, all changes, reconnect) of a contender ends after -limit, 5
// minutes by default. If at least one change was measured, the rows have the
// changes so far, and change/count has their number. Otherwise the contender
// stops: it has the figures of the previous phases, and a line below the table
// has the reason and how many clients were complete.
package main
