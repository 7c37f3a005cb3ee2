# A module for Consul-Terraform-Sync: one file for each instance of the services.

terraform {
  required_version = ">= 0.13"
  required_providers {
    local = {
      source  = "hashicorp/local"
      version = ">= 2.1.0"
    }
  }
}

resource "local_file" "instance" {
  for_each        = var.services
  filename        = "${var.directory}/${each.value.id}"
  content         = "${each.value.address}:${each.value.port} ${each.value.node_datacenter}\n"
  file_permission = "0600"
}
