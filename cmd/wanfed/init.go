// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/tlsutil"
)

func newInit() *cobra.Command {
	var dc, dir string
	var a addresses
	var start starter
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create a federation on this machine: CA, server and gateway",
		Long: `Create a federation whose first datacenter, the primary, has a server and a gateway
on this machine. The command creates a CA for all datacenters, a CA for the
certificates of this datacenter, certificates and settings. It starts the server
and the gateway, waits until "wanfed status" is ok, and exits. Both continue in
the background.

Where systemd runs and --dir is not given, both are units: wanfed-server and
wanfed-gateway. Otherwise they are processes whose logs and pid files are in the
directory data of --dir. After a restart of the machine, start them with
"wanfed up".

The keys of the CAs are in the directory server/ca of the data directory, encrypted
with the passphrase in the file ca-passphrase, which is next to the settings. Only
this machine has them: keep a copy of both in safe places. The datacenters need to reach
the gateway on one TCP port, that of --wan. Other machines join with the token of
"wanfed token issue".`,
		Example: `  wanfed init --dc dc1 --wan 198.51.100.1:8443
  wanfed init --dc dc1 --wan gw.dc1.example.com:8443 --dir /srv/wanfed
  wanfed init --dc dc1 --wan 198.51.100.1:8443 --dir /srv/wanfed --no-start && wanfed up --dir /srv/wanfed`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := tlsutil.CheckLabel(dc); err != nil {
				return usagef("--dc: %w", err)
			}
			l, err := newLayout(dir)
			if err != nil {
				return err
			}
			if start.done(cmd, l) {
				return nil
			}
			if err := a.complete(true); err != nil {
				return err
			}
			if err := start.check(cmd, l, a, true, true); err != nil {
				return err
			}
			files, err := firstFiles(l, dc, a)
			if err != nil {
				return err
			}
			if err := l.write(files); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "created the CA, certificates and settings of %s in %s\n", dc, l.conf)
			return start.run(cmd, l, a, dc)
		},
	}
	cmd.Flags().StringVar(&dc, "dc", "", "`name` of the datacenter (required)")
	cmd.Flags().StringVar(&dir, "dir", "", dirUsage)
	a.addFlags(cmd)
	start.addFlags(cmd)
	return cmd
}

// firstFiles returns the files of the first machine of a federation.
func firstFiles(l layout, dc string, a addresses) (newFiles, error) {
	root, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		return nil, err
	}
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{DC: dc, Parent: root})
	if err != nil {
		return nil, err
	}
	files := newFiles{}
	if err := files.addCA(l, tlsutil.Files{
		Cert: filepath.Join(l.caDir(), enroll.RootCert), Key: filepath.Join(l.caDir(), enroll.RootKey),
	}, root); err != nil {
		return nil, err
	}
	m := member{dc: dc, domain: tlsutil.DefaultDomain, primary: dc}
	return files, files.addFirst(l, m, a, ca, root.Cert)
}
