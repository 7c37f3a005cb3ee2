variable "services" {}
variable "catalog_services" {}
variable "consul_kv" {}
variable "tags" {}
variable "limits" {}
variable "enabled" {}
