variable "services" {
  description = "Instances of the services, from Consul-Terraform-Sync"
  type = map(object({
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
  }))
}

variable "directory" {
  description = "Directory of the files"
  type        = string
}
