// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

func newValidate() *cobra.Command {
	var gateway bool
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check files of settings",
		Long: `Check files of settings as "wanfed server" and "wanfed gateway" would, without running anything: what the files
say, and the files they name: certificates, and a gateway's routes. What a file says tells whether it is a server's, a
gateway's or one of routes. Settings that are given as flags or in the environment are not seen: what is required must be
in the file.

Prints "FILE: valid", or every fault (50 at most) with its line, and ends with exit status 1 if there is any.`,
		Example: `  wanfed validate /etc/wanfed/server.hcl /etc/wanfed/gateway.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("name the files to check; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			kinds := []fileKind{serverFile, gatewayFile}
			if gateway {
				kinds = []fileKind{gatewayFile}
			}
			return validateFiles(cmd.OutOrStdout(), files, kinds)
		},
	}
	cmd.Flags().BoolVar(&gateway, "gateway", false, "the files are those of gateways, whatever they look like")
	return cmd
}

func validateFiles(w io.Writer, files []string, kinds []fileKind) error {
	bad := 0
	for _, path := range files {
		errs := validateFile(path, kinds)
		if len(errs) == 0 {
			fmt.Fprintf(w, "%s: valid\n", path)
			continue
		}
		bad++
		for i, err := range errs {
			if i == maxFaults {
				fmt.Fprintf(w, "%s: and %d more faults\n", path, len(errs)-i)
				break
			}
			fmt.Fprintln(w, err)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d files not valid", bad, len(files))
	}
	return nil
}

// fileKind makes the settings of a kind of file: a pointer to the defaults, and what checks them once they are filled.
type fileKind func() (settings any, check func() error)

func serverFile() (any, func() error) {
	s := defaultServerSettings()
	return &s, func() error { return faults(s.check(), server.CheckFiles(s.config())) }
}

func gatewayFile() (any, func() error) {
	s := defaultGatewaySettings()
	return &s, func() error { return faults(s.check(), s.checkFiles()) }
}

// checkFiles returns what is wrong with the files that the settings name. What is not named is for check to say.
func (s gatewaySettings) checkFiles() error {
	switch {
	case s.Routes != "":
		_, err := readRoutes(s.Routes)
		return err
	case s.CAFile == "" || s.CertFile == "" || s.KeyFile == "",
		tlsutil.CheckDomain(s.Domain) != nil, tlsutil.CheckLabel(s.DC) != nil, tlsutil.CheckLabel(s.Node) != nil:
		return server.CheckDir("data_dir", s.DataDir)
	}
	_, err := s.files(slog.Default())
	return err
}

// routeBlocks is what tells a file of routes from one of settings, which has no blocks.
var routeBlocks = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "route", LabelNames: []string{"match"}}}}

// validateFile checks a file as that one of kinds which it looks like.
func validateFile(path string, kinds []fileKind) []error {
	src, err := readBounded(path, maxRouteFile) // it may be one
	if err != nil {
		return []error{fmt.Errorf("read settings: %w", err)}
	}
	f, errs := parseHCLSource(path, src)
	if len(errs) > 0 {
		return errs
	}
	if content, _, _ := f.Body.PartialContent(routeBlocks); len(content.Blocks) > 0 {
		_, err := readRoutes(path)
		return listOf(err)
	}
	attrs, _ := f.Body.JustAttributes() // what else is in the file comes out when it is decoded
	settings, check := looksLike(attrs, kinds)()
	if errs := hclErrors(gohcl.DecodeBody(f.Body, nil, settings)); len(errs) > 0 {
		return errs
	}
	for _, err := range listOf(check()) {
		errs = append(errs, atLine(path, attrs, err))
	}
	return errs
}

// listOf takes apart what faults joined.
func listOf(err error) []error {
	if list, ok := errors.AsType[faultList](err); ok {
		return list
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

// looksLike returns the kind that knows most of the attributes; of equals, the first.
func looksLike(attrs hcl.Attributes, kinds []fileKind) fileKind {
	best, most := kinds[0], -1
	for _, kind := range kinds {
		known := 0
		settings, _ := kind()
		eachSetting(settings, func(name, _, _ string, _ reflect.Value) {
			if _, ok := attrs[name]; ok {
				known++
			}
		})
		if known > most {
			best, most = kind, known
		}
	}
	return best
}

var firstWord = regexp.MustCompile(`^[A-Za-z0-9_]+`)

// attributeOf is which attribute errors about a file speak of that begin with these words.
var attributeOf = map[string]string{"CA": "ca_file", "cert": "cert_file", "key": "key_file"}

// atLine puts before err where the attribute stands with whose name it begins; only the file, if none.
func atLine(path string, attrs hcl.Attributes, err error) error {
	word := firstWord.FindString(err.Error())
	if a, ok := attrs[or(attributeOf[word], word)]; ok {
		return fmt.Errorf("%s:%d: %w", path, a.Range.Start.Line, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}
