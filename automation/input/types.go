// SPDX-License-Identifier: MPL-2.0

package input

// services is the type of the variable "services" of the protocol v0 of
// Consul-Terraform-Sync. The key of an instance is ID.NODE.DATACENTER, or
// ID.NODE.NAMESPACE.DATACENTER.
const services = `map(object({
  id        = string
  name      = string
  kind      = string
  address   = string
  port      = number
  meta      = map(string)
  tags      = list(string)
  namespace = string
  status    = string

  node                  = string
  node_id               = string
  node_address          = string
  node_datacenter       = string
  node_tagged_addresses = map(string)
  node_meta             = map(string)

  cts_user_defined_meta = map(string)
}))`

// types has the type of each variable.
var types = map[string]string{
	"services":         services,
	"catalog_services": `map(list(string))`, // tags by name of the service
	"consul_kv":        `map(string)`,
	"nodes": `map(object({ address = string, id = string, meta = map(string), name = string, status = string,
  tagged_addresses = map(string) }))`,
	"documents": `any`,
	"resources": `any`,
	"federation": `map(object({ primary = bool, reachable = bool, servers_alive = number,
  gateways = list(object({ name = string, lan = string, wan = string, healthy = bool })) }))`,
	"gateways":    `map(list(object({ name = string, lan = string, wan = string, healthy = bool })))`,
	"members":     `map(object({ dc = string, address = string, status = string, pool = string }))`,
	"datacenters": `map(object({ reachable = bool }))`,
}

// Type returns the type of a variable as a type constraint of Terraform, or ""
// for an unknown variable.
func Type(variable string) string { return types[variable] }
