// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/hcl/v2"
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/syncd"
)

func newValidate() *cobra.Command {
	var gateway bool
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check files of settings",
		Long: `Check files of settings, as "wanfed server" and "wanfed gateway" do at their
start. The check includes the files that the settings name: certificates, keys
and the routes of a gateway. The content of a file decides whether it has settings
of a server, settings of a gateway, routes, or tasks of a sync daemon. Flags and environment variables
are ignored: required settings must be in the file.

The command prints "FILE: valid", or each error (50 at most) with its line. The
exit status is 1 if there is an error.`,
		Example: `  wanfed validate /etc/wanfed/server.hcl /etc/wanfed/gateway.hcl`,
		Args:    files,
		RunE: func(cmd *cobra.Command, files []string) error {
			kinds := []settings.Kind{serverFile, gatewayFile}
			if gateway {
				kinds = []settings.Kind{gatewayFile}
			}
			return validateFiles(cmd.OutOrStdout(), files, kinds)
		},
	}
	cmd.Flags().BoolVar(&gateway, "gateway", false, "treat all files as settings of a gateway")
	return cmd
}

func validateFiles(w io.Writer, files []string, kinds []settings.Kind) error {
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

func serverFile() (any, func() error) {
	s := serverd.DefaultSettings()
	return &s, func() error { return settings.Join(s.Check(), s.CheckFiles()) }
}

func gatewayFile() (any, func() error) {
	s := gatewayd.DefaultSettings()
	return &s, func() error { return settings.Join(s.Check(), s.CheckFiles()) }
}

// routeBlocks matches the blocks of a file of routes. A file of settings has no
// blocks.
var routeBlocks = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: "route", LabelNames: []string{"match"}}}}

// validateFile checks a file of routes, or a file of settings of one of kinds.
func validateFile(path string, kinds []settings.Kind) error {
	src, err := settings.ReadFile(path, gatewayd.MaxRouteFile)
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	if config.Detect(path, src) {
		cfg, err := config.Load([]string{path}, os.Getenv)
		if err == nil {
			err = settings.Join(cfg.CheckModules(), syncd.CheckFiles(cfg))
		}
		return err
	}
	f, err := settings.Parse(path, src)
	if err != nil {
		return err
	}
	if content, _, _ := f.Body.PartialContent(routeBlocks); len(content.Blocks) > 0 {
		_, err := gatewayd.ReadRoutes(path)
		return err
	}
	return settings.CheckFile(path, f.Body, kinds)
}
