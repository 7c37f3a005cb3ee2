// SPDX-License-Identifier: MPL-2.0

// Package serverd is the server process: it runs package server with settings,
// signals, a log and the metrics of libraries.
//
//	s := serverd.DefaultSettings()
//	s.DC, s.Node, s.DataDir = "dc1", "srv1", "/var/lib/wanfed"
//	err := serverd.Run(ctx, serverd.Config{Settings: s, Reload: reload, Stdout: os.Stdout, Stderr: os.Stderr})
//
// SIGHUP reads the settings and the certificate again. Settings with the tag
// live change, and the log names those that need a restart. An error changes
// nothing. The service manager is notified of start, reload and stop
// (sd_notify).
//
// # Globals
//
// Raft, serf and memberlist have one metrics sink per process. Run sets it, and
// the garbage collection target. While Run runs, it owns the signal SIGHUP of
// the process, so one process runs one server. Run joins every goroutine that
// it starts.
package serverd
