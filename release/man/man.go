// SPDX-License-Identifier: MPL-2.0

// Package man writes the manual pages and the shell completion of a command. A
// build of cmd/wanfed that has another file, wanfed.go.txt, calls it: package main
// cannot be imported.
package man

import (
	_ "embed"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Caller is the file of package main that calls Write if the environment variable
// EnvDir is set.
//
//go:embed wanfed.go.txt
var Caller []byte

// EnvDir is the environment variable with the directory of the files.
const EnvDir = "WANFED_MAN"

// Files of the directory.
const (
	Pages = "man"
	Bash  = "wanfed.bash"
	Zsh   = "_wanfed"
	Fish  = "wanfed.fish"
)

// Write writes the pages of root and all its subcommands, and the completion for
// three shells, to a directory. The pages have the date of a commit.
func Write(root *cobra.Command, dir string, date time.Time) error {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	pages := filepath.Join(dir, Pages)
	if err := os.MkdirAll(pages, 0o755); err != nil {
		return err
	}
	return errors.Join(
		doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "wanfed", Manual: "wanfed", Date: &date}, pages),
		root.GenBashCompletionFileV2(filepath.Join(dir, Bash), true),
		root.GenZshCompletionFile(filepath.Join(dir, Zsh)),
		root.GenFishCompletionFile(filepath.Join(dir, Fish), true),
	)
}
