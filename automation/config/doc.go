// SPDX-License-Identifier: MPL-2.0

// Package config reads the configuration of a sync daemon from the files of
// Consul-Terraform-Sync (CTS). The files have HCL 1, or JSON with the same
// structure.
//
//	cfg, err := config.Load([]string{"sync.hcl", "conf.d"}, os.Getenv)
//
// Later files are merged into earlier ones: maps and lists are united, tasks
// and providers appended, and scalars replaced. Load returns all errors at
// once, each as an *Error with file, line, block, field and rule. Unknown keys
// are errors. Deprecated names, and settings of CTS without effect, are in
// Config.Warnings. Terraform Cloud, Vault, auto_commit and licences are refused.
//
// # Additions to CTS
//
// At the top level:
//
//	group          = "edge"           # group of the daemon, and of tasks without one
//	max_running    = 4                # concurrent runs of the daemon
//	state_key_file = "/etc/sync.keys" # keys that encrypt the states of Terraform
//	wanfed {                          # the servers of wanfed, and a certificate of the role sync
//	  address = ["10.0.0.1:8300"]
//	  ca      = "ca.pem"
//	  cert    = "dc1-sync.pem"
//	  key     = "dc1-sync-key.pem"
//	}
//
// In a task:
//
//	driver      = "exec" # default: terraform
//	group       = "edge"
//	timeout     = "1h"
//	grace       = "30s"
//	drift_check = "6h"
//	on_delete   = "destroy" # or keep
//	parallelism = 10        # of Terraform
//	guard {
//	  max_destroy = "20%"
//	  approve     = true
//	  empty_input = true
//	}
//	exec {
//	  command = ["/usr/local/bin/apply", "--quiet"]
//	  plan    = ["/usr/local/bin/apply", "--check"]
//	  destroy = ["/usr/local/bin/remove"]
//	  env     = { REGION = "eu" }
//	}
//	condition "datacenter" { # any number of conditions, of all kinds of package task
//	  datacenter = "dc2"
//	  state      = "unreachable"
//	  for        = "30s"
//	  on         = ["changed"]
//	}
//
// The block high_availability names a cluster. Its name is the group of the
// daemon, and its session_ttl the duration of the leases on tasks.
//
// # Templates
//
// Strings in terraform_provider blocks may have the templates {{ env "NAME" }}
// and {{ key "PATH" }}. Load checks their syntax. ProviderBlock.Evaluate
// evaluates them, and is called for each run.
package config
