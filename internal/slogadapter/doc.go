// SPDX-License-Identifier: MPL-2.0

// Package slogadapter lets libraries that log through hclog or the standard
// logger write to a log/slog logger.
//
//	conf := raft.DefaultConfig()
//	conf.Logger = slogadapter.New(logger, "raft")
//
//	serfConf.Logger = slogadapter.Std(logger, "serf")
//
// hashicorp/raft needs an hclog.Logger: New returns one. Serf and memberlist need
// a *log.Logger and write the level into the text, as in "[WARN] memberlist: ...":
// Std returns one that removes the level from the text. Both add the attribute
// component with the name of the library.
//
// # Levels
//
// The trace level of hclog becomes slog.LevelDebug-4; the other levels keep their
// names. A text without a level is Info. The key "error" of the libraries becomes
// "err". The slog handler alone decides which levels are written: SetLevel does
// nothing.
//
// Demote returns a handler that reduces the log of libraries: Info records and
// repeated records become Debug.
//
// # Limits
//
// The package does not parse the messages of the libraries. It starts no
// goroutine, and it buffers and blocks only as the slog handler does. Loggers are
// safe for concurrent use.
package slogadapter
