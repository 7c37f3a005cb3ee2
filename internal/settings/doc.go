// SPDX-License-Identifier: MPL-2.0

// Package settings reads the settings of a command from a file, the environment
// and flags into a struct, and reports all errors at once.
//
//	type server struct {
//		DataDir string `hcl:"data_dir,optional" help:"directory of the Raft log"`
//	}
//	var s server
//	err := settings.Read("server.hcl", &s) // data_dir = "/var/lib/wanfed"
//
// The field DataDir also has the environment variable WANFED_DATA_DIR and the
// flag --data-dir: AddFlags adds the flags, and Load reads all sources. The
// function Each lists the fields of the struct. Fields are string, int, bool or
// []string, and have these tags:
//
//   - hcl: name of the attribute in the file
//   - help: a noun phrase with unit and default
//   - flag: name of the flag, if it differs from the attribute (with hyphens)
//   - live: "yes" if a running process applies a changed value
//
// A file has the format HCL, or the JSON form of HCL if its name ends in .json.
// Errors name file, line and column. Join combines errors into a list. A file
// has at most MaxFile bytes and 10,000 nested brackets.
//
// The package also parses values that several commands have in common: log
// level and format, and IP networks.
package settings
