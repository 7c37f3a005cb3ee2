// SPDX-License-Identifier: MPL-2.0

// Package slogadapter redirects the logs of libraries, which use hclog or the
// standard logger, to a log/slog logger.
//
//	conf := raft.DefaultConfig()
//	conf.Logger = slogadapter.New(logger, "raft")
//
//	serfConf.Logger = slogadapter.Std(logger, "serf")
//
// hashicorp/raft uses an hclog.Logger (New). Serf and memberlist use a
// *log.Logger (Std) and write the level into the text, as in "[WARN]
// memberlist: ...". Std removes the level from the text. Both loggers add the
// attribute component with the name of the library.
//
// The trace level of hclog becomes slog.LevelDebug-4. The other levels keep
// their names. A text without a level has level Info. The key "error" of the
// libraries becomes "err". Only the slog handler selects the levels that are
// written.
//
// Demote returns a handler for the logs of libraries. Info records and repeated
// records become Debug records.
//
// Loggers are safe for concurrent use. They do not parse the messages of the
// libraries.
package slogadapter
