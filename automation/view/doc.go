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
// element of their paths. A stream ends when its last view is closed. After the
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
//
// The first three are those of Consul-Terraform-Sync's protocol v0. The address
// of an instance is that of its node if it has none. The status is the worst
// status of its checks and of the checks of its node. Instances that do not pass
// are absent, unless the query has names and a filter with "Checks.Status".
//
// # Goroutines
//
// Run has one goroutine for each stream, and joins them. A change is rendered
// about 2 ms after its arrival, together with all others. No method blocks.
package view
