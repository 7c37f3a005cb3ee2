// SPDX-License-Identifier: MPL-2.0

// Package subprocess runs wanfed servers and gateways as processes of this
// machine, for the demo and for end-to-end tests.
//
//	srv, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
//		Program: []string{"bin/wanfed"}, Dir: dir, DC: "dc1", Node: "srv1", TLS: files,
//	})
//	if err != nil {
//		return err
//	}
//	defer srv.Kill()
//	resp, err := http.Get(srv.HTTP + "/v1/status/leader")
//
// Start runs a command, writes its output to a log file and waits for the line
// that reports readiness. StartServer and StartGateway build the command line.
// They parse the addresses in the readiness line, so ports may be 0. Stop sends
// SIGTERM, and kills the process if the context ends first. Kill kills the
// process immediately. Both return after the end of the process.
//
// Each process has one goroutine that waits for its end and one that copies its
// output. Both end with the process, also when Start fails.
//
// # End of the parent
//
// The stdin of a process is a pipe to which the parent never writes. When the
// parent ends, also by SIGKILL, the kernel closes the pipe. The process runs
// with --stop-on-eof and stops at the end of stdin (see UntilEOF). Each process
// has its own process group, so Ctrl-C in a terminal reaches only the parent,
// which stops the processes in order. On Unix the kernel sends SIGHUP to a
// suspended group that loses its parent, so a suspended process ends too.
//
// # Limits
//
// Processes that a child starts are not tracked. On Windows Stop closes stdin
// instead of sending a signal.
package subprocess
