// SPDX-License-Identifier: MPL-2.0

// Command wanfed joins datacenters that reach each other only through gateways.
// "wanfed --help" lists the subcommands.
//
// A subcommand converts flags, environment variables and files to the
// configuration of a library, calls the library and prints the result.
//
// # Flow
//
// main builds the command tree and runs one command with a context that ends at
// SIGINT or SIGTERM. A second signal ends the process at once. With the hidden
// flag --stop-on-eof the context also ends when stdin ends.
//
// The settings of server and gateway come from a file, WANFED_... environment
// variables and flags (package internal/settings). Commands that call a server
// have a common set of flags and environment variables (client.go) and print
// tables or JSON (package internal/output). Packages serverd and gatewayd run the
// two processes.
//
// Results go to stdout, logs and errors to stderr. The exit status is 0 for
// success, 1 for a failure, and 2 for wrong usage or settings. All errors of
// the settings are printed, not only the first.
package main
