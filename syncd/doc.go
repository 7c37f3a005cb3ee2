// SPDX-License-Identifier: MPL-2.0

// Package syncd is the process of the sync daemon: it reads configuration files,
// connects to the servers, and runs package automation.
//
//	err := syncd.Run(ctx, syncd.Config{Paths: []string{"sync.hcl"}, Stderr: os.Stderr})
//
// The files are those of Consul-Terraform-Sync (package automation/config). The
// daemon reads data from the HTTP API at consul.address, and finds the server
// ports there, unless wanfed.address names them. Writes use the server ports and
// the daemon's certificate, which has the role "sync".
//
// SIGHUP reads the files again: log level, tasks and providers change. An error
// changes nothing.
//
// The tasks in the files become resources. Without TLS, the HTTP API listens on
// the loopback only.
package syncd
