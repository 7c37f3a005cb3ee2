// SPDX-License-Identifier: MPL-2.0

// Package view maintains the data that tasks depend on: the values of their
// conditions and inputs. It does not decide about runs.
//
//	views, err := view.New(view.NewSource(client), view.Config{Datacenter: "dc1"})
//	go views.Run(ctx)
//	w, err := views.Open(query)
//	for {
//		changed := w.Changed()
//		if v, ok := w.Value(); ok {
//			// compare v.Trigger with that of the last run
//		}
//		<-changed
//	}
//
// # Streams
//
// Three streams per datacenter have its nodes, services and checks. All views of
// the catalog of the datacenter use them. Keys have one stream for each first
// element of their paths, and other resources one for each type and prefix. The
// state of the federation is one stream, and a poll each 0.8 s of the status
// and members that the local server reports. A stream ends when its last view is
// closed. After the
// loss of a stream, its views keep their values until all related streams have
// sent a new snapshot. The values then change at once. A view has no value until
// its data was complete once.
//
// The cost of a change is proportional to what it touches. Views share rendered
// objects. A regular expression is evaluated once for each new name. Value joins
// the objects of a view, once for each change.
//
// # Values
//
// Value.JSON is an object. Its values have these types in Terraform:
//
//	services          object, by ID.NODE.DATACENTER: id, name, kind, address, node, node_id, node_address,
//	                  node_datacenter, namespace, status = string; port = number; tags = list(string); meta,
//	                  node_meta, node_tagged_addresses, cts_user_defined_meta = map(string)
//	catalog_services  list(string), by name: the tags of all instances, sorted
//	consul_kv         string, by key
//	nodes             object, by name: id, name, address, status = string; meta, tagged_addresses = map(string)
//	documents         any, by name: the content of the document
//	resources         object, by name: data = any; metadata = map(string)
//	federation        object, by datacenter: primary, reachable = bool; servers_alive = number;
//	                  gateways = list(object({ name, lan, wan = string, healthy = bool }))
//	gateways          list(object({ name, lan, wan = string, healthy = bool })), by datacenter
//	members           object, by name: dc, address, status, pool = string
//	datacenters       object, by datacenter: reachable = bool
//
// The first three are those of Consul-Terraform-Sync's protocol v0. The address
// of an instance is that of its node if it has none. The status is the worst
// status of its checks and of the checks of its node. Instances that do not pass
// are absent, unless the query has names and a filter with "Checks.Status".
//
// A datacenter is reachable if a path of the local server to it works. While the
// server has no recent result, the last known state is valid. The addresses lan
// and wan are host:port, or "". The pool of a member is "lan" or "wan". Its status is "alive"
// until it has failed or left, also while it leaves.
//
// # Datacenters
//
// A query of kind "datacenter" may have a state and a duration. A datacenter
// enters the state when the state has lasted for the duration, and leaves it at
// once. Without a state, the duration applies to both. The duration begins with
// the first poll that reports the state, and a further poll at its end shows that
// the state has lasted. Time in which the source was not available does not
// count. Value.Keys has the datacenters that are in the state, and Trigger is
// their digest. Values have no times: they would differ between daemons, and
// start runs. The view of a daemon that starts has no value until each datacenter
// has entered or left the state.
//
// # Goroutines
//
// Run has one goroutine for each stream, and joins them. A change is rendered
// about 2 ms after its arrival, together with all others. No method blocks.
package view
