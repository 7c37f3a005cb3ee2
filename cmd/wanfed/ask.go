// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/tlsutil"
)

// newRead is a command that asks a server's HTTP API: it has the flags that say where, and --format. run prints to out.
func newRead(c *cobra.Command, run func(cmd *cobra.Command, args []string, ask asker, out printer) error) *cobra.Command {
	var f format = formatTable
	flags := c.Flags()
	flags.String("http-addr", api.DefaultHTTPAddr, "`address` of a server's HTTP API: host:port or URL (WANFED_HTTP_ADDR)")
	flags.String("at", "", "ask datacenter `DC` instead, through that server")
	addTLSFlags(c, "for an https address")
	flags.String("tls-server-name", "", "`name` to expect in the server's certificate instead of the address (WANFED_TLS_SERVER_NAME)")
	flags.Var(&f, "format", "table or json")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("at", completeDatacenters)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := newHTTPClient(cmd, 0)
		if err != nil {
			return err
		}
		defer client.Close()
		ask := asker{Client: client, opts: api.QueryOptions{Datacenter: setting(cmd, "at")}}
		return adviseHTTP(run(cmd, args, ask, printer{cmd.OutOrStdout(), f}))
	}
	return c
}

// asker is a client with the datacenter that the user wants to ask.
type asker struct {
	*api.Client
	opts api.QueryOptions
}

// setting is a flag's value when it was given, else that of its environment variable, else its default.
func setting(cmd *cobra.Command, flag string) string {
	f := cmd.Flag(flag)
	if env := os.Getenv(envName(flag)); env != "" && !f.Changed {
		return env
	}
	return f.Value.String()
}

func addTLSFlags(c *cobra.Command, what string) {
	flags := c.Flags()
	flags.String("ca-file", "", "PEM `file` of the CA, "+what+" (WANFED_CA_FILE)")
	flags.String("cert-file", "", "PEM `file` of your certificate (WANFED_CERT_FILE)")
	flags.String("key-file", "", "PEM `file` of its key (WANFED_KEY_FILE)")
	flags.String("domain", tlsutil.DefaultDomain, "domain of names on the wire (WANFED_DOMAIN)")
}

// loadIdentity reads the files that the flags of addTLSFlags name; why says what they are needed for.
func loadIdentity(cmd *cobra.Command, why string) (*tlsutil.Identity, error) {
	var missing []string
	for _, flag := range []string{"ca-file", "cert-file", "key-file"} {
		if setting(cmd, flag) == "" {
			missing = append(missing, "--"+flag)
		}
	}
	if missing != nil {
		return nil, usagef("%s needs %s; make a certificate with: wanfed tls cert create --cli --dc DC", why, strings.Join(missing, ", "))
	}
	files := tlsutil.Files{CA: setting(cmd, "ca-file"), Cert: setting(cmd, "cert-file"), Key: setting(cmd, "key-file")}
	return tlsutil.Load(files, setting(cmd, "domain"), slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
}

// newHTTPClient asks the server that flags and environment name. timeout 0 is the client's own default.
func newHTTPClient(cmd *cobra.Command, timeout time.Duration) (*api.Client, error) {
	cfg := api.ClientConfig{Addr: setting(cmd, "http-addr"), Timeout: timeout}
	if strings.HasPrefix(cfg.Addr, "https://") {
		id, err := loadIdentity(cmd, cfg.Addr)
		if err != nil {
			return nil, err
		}
		cfg.TLS = id.ClientConfig(setting(cmd, "tls-server-name"))
	}
	client, err := api.NewClient(cfg)
	if err != nil {
		return nil, usageError{err}
	}
	return client, nil
}

// adviseHTTP adds to an error of the client what a user of the command can do.
func adviseHTTP(err error) error {
	const port = "that may be a port for other machines; people and tools ask another one, 8500 if not set otherwise: set --http-addr or WANFED_HTTP_ADDR"
	if s, ok := errors.AsType[*api.StatusError](err); ok && s.Code == http.StatusUnsupportedMediaType {
		return fmt.Errorf("%w; %s", err, port) // gRPC says so to whoever speaks plain HTTP
	}
	e, ok := errors.AsType[*api.UnreachableError](err)
	if !ok {
		return err
	}
	if strings.HasPrefix(e.Addr, "http://") && errors.Is(e.Err, io.EOF) {
		return fmt.Errorf("%w; %s", err, port)
	}
	if _, foreign := errors.AsType[x509.UnknownAuthorityError](e.Err); foreign {
		return fmt.Errorf("no server of your CA at %s: %s; give --ca-file (WANFED_CA_FILE) the CA of its certificate", e.Addr, tlsutil.DescribeError(e.Err))
	}
	if clear := tlsutil.DescribeError(e.Err); strings.HasPrefix(e.Addr, "https://") && clear != e.Err.Error() {
		return fmt.Errorf("no server answers at %s: %s", e.Addr, clear)
	}
	return fmt.Errorf("%w; is wanfed server running there? set --http-addr or WANFED_HTTP_ADDR", err)
}

// completeDatacenters offers the datacenters that the server knows; none when it does not answer at once.
func completeDatacenters(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	client, err := newHTTPClient(cmd, time.Second)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	dcs, _ := client.Datacenters(ctx, api.QueryOptions{})
	return dcs, cobra.ShellCompDirectiveNoFileComp
}

// completeOneDatacenter does so for a command that takes one datacenter as its argument.
func completeOneDatacenter(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return completeDatacenters(cmd, args, toComplete)
}

// oneDatacenter demands one argument, the name of a datacenter.
func oneDatacenter(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usagef("say which datacenter: %s; see: %s --help", cmd.UseLine(), cmd.CommandPath())
	case len(args) > 1:
		return usagef("unexpected argument %q: one datacenter at a time; see: %s --help", args[1], cmd.CommandPath())
	}
	if err := tlsutil.CheckLabel(args[0]); err != nil {
		return usagef("datacenter: %w", err)
	}
	return nil
}
