// SPDX-License-Identifier: MPL-2.0

// Command wanfed joins datacenters that can reach each other only through gateways. "wanfed --help" lists what it can do.
//
// There is a file per subcommand, which turns flags, environment and files into the configuration of a library, calls it and
// prints. What wanfed does is decided in the libraries; nothing here is more than a way to them.
//
// # Flow
//
// main builds the commands and runs the one that was called, with a context that ends at SIGINT or SIGTERM (from then on a
// second signal ends the process at once), or, with the hidden flag --stop-on-eof, when stdin ends. Settings of server and
// gateway come from a file, WANFED_... variables and flags, a later one beating an earlier one (config.go).
//
// Results go to stdout, logs and errors to stderr. The exit status is 0 when it was done, 1 when it failed, and 2 when the
// call or the settings were wrong, which is said with all faults at once.
//
// # Globals
//
// Raft, serf and memberlist count into one place per process. It is set here, once, so that their numbers come out at
// /metrics (server.go); no library of this module touches it.
package main
