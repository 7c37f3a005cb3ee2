// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/server"
)

func newValidate() *cobra.Command {
	var gateway bool
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check files of settings",
		Long: `Check files of settings, as "wanfed server" and "wanfed gateway" do at their
start. The check includes the files that the settings name: certificates, keys
and the routes of a gateway. The content of a file decides whether it has settings
of a server, settings of a gateway, or routes. Flags and environment variables
are ignored: required settings must be in the file.

The command prints "FILE: valid", or each error (50 at most) with its line. The
exit status is 1 if there is an error.`,
		Example: `  wanfed validate /etc/wanfed/server.hcl /etc/wanfed/gateway.hcl`,
		Args:    files,
		RunE: func(cmd *cobra.Command, files []string) error {
			kinds := []fileKind{serverFile, gatewayFile}
			if gateway {
				kinds = []fileKind{gatewayFile}
			}
			return validateFiles(cmd.OutOrStdout(), files, kinds)
		},
	}
	cmd.Flags().BoolVar(&gateway, "gateway", false, "treat all files as settings of a gateway")
	return cmd
}

func validateFiles(w io.Writer, files []string, kinds []fileKind) error {
	invalid := 0
	for _, path := range files {
		errs := settings.Split(validateFile(path, kinds))
		if len(errs) == 0 {
			fmt.Fprintf(w, "%s: valid\n", path)
			continue
		}
		invalid++
		for i, err := range errs {
			if i == settings.MaxErrors {
				fmt.Fprintf(w, "%s: and %d more errors\n", path, len(errs)-i)
				break
			}
			fmt.Fprintln(w, err)
		}
	}
	if invalid > 0 {
		return fmt.Errorf("%d of %d files not valid", invalid, len(files))
	}
	return nil
}

// A fileKind is a kind of settings file: of a server or of a gateway. It
// returns a pointer to new settings with default values, and the function
// check. The caller decodes a file into these settings, and then check
// validates them.
type fileKind func() (defaults any, check func() error)

func serverFile() (any, func() error) {
	s := defaultServerSettings()
	return &s, func() error { return settings.Join(s.check(), server.CheckFiles(s.config())) }
}

func gatewayFile() (any, func() error) {
	s := gatewayd.DefaultSettings()
	return &s, func() error { return settings.Join(s.Check(), s.CheckFiles()) }
}

// routeBlocks matches the blocks of a file of routes. A file of settings has no
// blocks.
var routeBlocks = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "route", LabelNames: []string{"match"}}}}

// validateFile checks a file of routes, or a file of settings of one of kinds.
func validateFile(path string, kinds []fileKind) error {
	src, err := settings.ReadFile(path, gatewayd.MaxRouteFile)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	f, err := settings.Parse(path, src)
	if err != nil {
		return err
	}
	if content, _, _ := f.Body.PartialContent(routeBlocks); len(content.Blocks) > 0 {
		_, err := gatewayd.ReadRoutes(path)
		return err
	}
	attrs, _ := f.Body.JustAttributes() // Decode reports the errors
	values, check := detectKind(attrs, kinds)()
	if err := settings.Decode(f.Body, values); err != nil {
		return err
	}
	var errs []error
	for _, err := range settings.Split(check()) {
		errs = append(errs, withLine(path, attrs, err))
	}
	return settings.Join(errs...)
}

// detectKind returns the kind whose settings include the largest number of the
// attributes. If several kinds include the same number, it returns the first.
func detectKind(attrs hcl.Attributes, kinds []fileKind) fileKind {
	return slices.MaxFunc(kinds, func(a, b fileKind) int {
		return cmp.Compare(matchCount(attrs, a), matchCount(attrs, b))
	})
}

// matchCount returns the number of attributes that are settings of kind.
func matchCount(attrs hcl.Attributes, kind fileKind) (n int) {
	values, _ := kind()
	settings.Each(values, func(f settings.Field) {
		if _, ok := attrs[f.Name]; ok {
			n++
		}
	})
	return n
}

var firstWord = regexp.MustCompile(`^[A-Za-z0-9_]+`)

// attributeOf maps the first word of an error about a file to the attribute
// that names the file.
var attributeOf = map[string]string{"CA": "ca_file", "cert": "cert_file", "key": "key_file"}

// withLine adds the path to err, and the line of the attribute that the first
// word of err names.
func withLine(path string, attrs hcl.Attributes, err error) error {
	word := firstWord.FindString(err.Error())
	if a, ok := attrs[cmp.Or(attributeOf[word], word)]; ok {
		return fmt.Errorf("%s:%d: %w", path, a.Range.Start.Line, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}
