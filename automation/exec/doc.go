// SPDX-License-Identifier: MPL-2.0

// Package exec is the driver "exec": it runs the command of a task, and the
// command reads the inputs as JSON.
//
// No shell interprets the command. A program without a slash is searched in
// PATH. A relative path is relative to the directory in which the daemon was
// started. The working directory is the directory of the task.
//
// # Inputs
//
// Standard input is a file with a JSON object: the value of each variable, by
// the name of the variable. The environment variable WANFED_INPUTS has the path
// of the file, and WANFED_RUN_ID has the id of the run. The environment has the
// variables of the task, and of the daemon's only PATH, HOME, the locale, the
// directory for temporary files and the proxy.
//
// # Result
//
// A run succeeds with exit status 0. The plan command exits with 0 if there is
// nothing to change, and with 2 if there is. A task without a plan command
// cannot be planned, and has no guard. A program that the daemon interrupts has
// failed, also with exit status 0.
//
// The command survives the daemon. A small script of /bin/sh around it writes
// the exit status to the file run.exit, where the next daemon finds it. After
// SIGKILL of this script, the result is lost and the run is repeated.
package exec
