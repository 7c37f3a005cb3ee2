// SPDX-License-Identifier: MPL-2.0

// Package hclogs lets libraries that log through hclog or the standard logger write to our log/slog logger.
//
// hashicorp/raft wants an hclog.Logger: New gives one. Serf and memberlist want a *log.Logger and put the level into the
// text, as in "[WARN] memberlist: ...": Std gives one that takes the level out again. Both name the library in the
// attribute "component".
//
// Levels: hclog's trace becomes slog.LevelDebug-4, the others keep their names. A text without a level is Info. The key
// "error", which the libraries use, becomes our "err". Which levels are written is the slog handler's decision alone:
// SetLevel does nothing.
//
// Nothing here starts a goroutine, buffers or blocks, other than in the slog handler. Loggers may be used from any
// goroutine. Demote makes the libraries quieter: what they call Info, and what they say again and again, becomes Debug. What
// the package does not do: taking apart the texts of the libraries.
//
//	conf := raft.DefaultConfig()
//	conf.Logger = hclogs.New(logger, "raft")
//
//	serfConf.Logger = hclogs.Std(logger, "serf")
package hclogs
