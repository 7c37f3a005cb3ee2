// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// confirmation is the confirmation that a command requires before it may lose
// data.
type confirmation struct{ yes bool }

func (c *confirmation) addFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.yes, "yes", false, "confirm without a question")
}

// check returns a usage error if a question is necessary and stdin is not a
// terminal.
func (c *confirmation) check(cmd *cobra.Command) error {
	if c.yes || isTerminal(cmd.InOrStdin()) {
		return nil
	}
	return usagef("the command requires a confirmation, and stdin is not a terminal; to confirm, add --yes")
}

// require prints warning and a question. It returns an error unless the user
// confirms, or --yes is set.
func (c *confirmation) require(cmd *cobra.Command, warning string) error {
	w := cmd.ErrOrStderr()
	fmt.Fprintln(w, warning)
	if c.yes {
		return nil
	}
	fmt.Fprint(w, `Type "yes" to continue: `)
	// Nothing ends a read from a terminal. After an interrupt, the goroutine
	// ends with the process.
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 100)).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case line := <-answer:
		if line != "yes" {
			return errors.New("not confirmed")
		}
		return nil
	case <-cmd.Context().Done():
		return context.Cause(cmd.Context())
	}
}

// isTerminal reports whether stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
