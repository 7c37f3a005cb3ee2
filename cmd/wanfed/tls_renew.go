// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
)

// renewal has the flags of the command tls renew.
type renewal struct {
	dir, domain string
	servers     []string
}

func newTLSRenew() *cobra.Command {
	var r renewal
	c := &cobra.Command{
		Use:   "renew",
		Short: "Renew the certificates of this machine now",
		Long: `Renew the certificates of wanfed init or wanfed join in --dir: those of the server,
of the gateway and of the operator. Each gets a new key and a certificate with the
same name and role, and the files are replaced. A running server or gateway uses
them within a second and keeps its connections.

Servers and gateways renew their certificates themselves at two thirds of their
life. The command is for the certificate of an operator, which is valid for a year,
and after a change of cert_life. It needs certificates that have not expired, and a
server of the datacenter: that of this machine, or one of --server.`,
		Example: `  wanfed tls renew
  wanfed tls renew --dir /srv/wanfed
  wanfed tls renew --server 10.0.0.5:8300      # on the machine of an operator`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd) },
	}
	c.Flags().StringVar(&r.dir, "dir", "", dirUsage)
	c.Flags().StringVar(&r.domain, "domain", "", "domain of the names in certificates (default: that of the settings, or wanfed)")
	c.Flags().StringSliceVar(&r.servers, "server", nil,
		"`host:port` of a server of the datacenter (default: those in the settings); repeatable")
	return c
}

func (r *renewal) run(cmd *cobra.Command) error {
	l, err := newLayout(r.dir)
	if err != nil {
		return err
	}
	for _, s := range r.servers {
		if err := netaddr.CheckHostPort(s); err != nil {
			return usagef("--server: %w", err)
		}
	}
	if err := r.complete(l); err != nil {
		return err
	}
	found := false
	for _, role := range []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway, tlsutil.RoleOperator} {
		f := l.cert(role)
		if _, err := os.Stat(f.Cert); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found = true
		if err := r.renew(cmd.Context(), f, ""); err != nil {
			return fmt.Errorf("renew %s: %w", f.Cert, err)
		}
		if err := l.chown(l.conf); err != nil {
			return err
		}
		cert, err := readCerts(f.Cert)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "renewed %s  valid until %s\n", f.Cert, cert[0].NotAfter.UTC().Format(time.RFC3339))
	}
	if !found {
		return fmt.Errorf("%s has no certificate of wanfed init or wanfed join; set --dir", l.conf)
	}
	return nil
}

// complete sets the domain and the servers from the settings of the machine.
func (r *renewal) complete(l layout) error {
	var known []string
	if load, ok := loadFile(l.serverHCL(), serverd.DefaultSettings); ok {
		s, err := load()
		if err != nil {
			return err
		}
		known, r.domain = append(known, serverAddr(s)), cmp.Or(r.domain, s.Domain)
	}
	if load, ok := loadFile(l.gatewayHCL(), gatewayd.DefaultSettings); ok {
		s, err := load()
		if err != nil {
			return err
		}
		known, r.domain = append(known, s.Servers...), cmp.Or(r.domain, s.Domain)
	}
	if len(r.servers) == 0 {
		r.servers = known
	}
	if len(r.servers) == 0 {
		return usagef("--server is required: %s has neither server.hcl nor gateway.hcl", l.conf)
	}
	r.domain = cmp.Or(r.domain, tlsutil.DefaultDomain)
	return nil
}

// renew renews one certificate: see enroll.Renewer.
func (r *renewal) renew(ctx context.Context, f tlsutil.Files, root string) error {
	id, err := tlsutil.Load(f, r.domain, nil)
	if err != nil {
		return err
	}
	cc, err := api.NewServerClient(id, id.Peer().DC, api.Addrs(r.servers...))
	if err != nil {
		return err
	}
	defer cc.Close()
	return enroll.Renewer{
		Identity: id, Logger: slog.New(slog.DiscardHandler),
		Connect: func() (grpc.ClientConnInterface, error) { return cc, nil },
	}.Renew(ctx, root)
}
