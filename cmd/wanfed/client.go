// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
)

// addClientFlags adds the flags of every command that calls a server.
func addClientFlags(c *cobra.Command) {
	flags := c.Flags()
	flags.String("http-addr", api.DefaultHTTPAddr,
		"`address` of the HTTP API of a server: host:port, URL or unix:///path (WANFED_HTTP_ADDR)")
	flags.String("datacenter", "", "`name` of the datacenter to call (default: that of the server)")
	flags.String("tls-server-name", "",
		"`name` in the certificate of the server, if not the host of --http-addr (WANFED_TLS_SERVER_NAME)")
	flags.String("ca-file", "", "PEM `file` with the CA certificates (WANFED_CA_FILE)")
	flags.String("cert-file", "", "PEM `file` with your certificate (WANFED_CERT_FILE)")
	flags.String("key-file", "", "PEM `file` with the private key of your certificate (WANFED_KEY_FILE)")
	flags.String("domain", tlsutil.DefaultDomain, "domain of the names in certificates and SNI (WANFED_DOMAIN)")
	flags.String("dir", "", "`directory` of wanfed init or wanfed join, with the address, the CA and your certificate (WANFED_DIR)")
	_ = c.RegisterFlagCompletionFunc("datacenter", completeDatacenters)
	c.PreRunE = func(cmd *cobra.Command, _ []string) error { return useDir(cmd) }
}

// useDir sets the flags that are not given to the values for the directory in
// --dir: the address of its server, and the certificate of its operator. A
// machine without that certificate, such as a further server, can only read.
func useDir(cmd *cobra.Command) error {
	dir := settings.FlagOrEnv(cmd.Flags(), "dir")
	if dir == "" {
		return nil
	}
	l, err := newLayout(dir)
	if err != nil {
		return err
	}
	values := map[string]string{}
	load, isServer := loadFile(l.serverHCL(), serverd.DefaultSettings)
	if isServer {
		s, err := load()
		if err != nil {
			return err
		}
		values["domain"], values["http-addr"] = s.Domain, s.HTTPAddr
	}
	f := l.cert(tlsutil.RoleOperator)
	switch _, err := os.Stat(f.Key); {
	case err == nil:
		values["ca-file"], values["cert-file"], values["key-file"] = f.CA, f.Cert, f.Key
		if isServer {
			addr := values["http-addr"]
			values["http-addr"] = "https://" + addr[strings.LastIndexByte(addr, '/')+1:]
		}
	case !isServer:
		return usagef("--dir %s has neither a server nor the certificate of an operator; "+
			"name the directory of wanfed init or wanfed join", dir)
	}
	for name, value := range values {
		if !cmd.Flags().Changed(name) {
			if err := cmd.Flags().Set(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// addReadFlags adds the flags of a command that calls the HTTP API. The command
// calls run, which prints to out.
func addReadFlags(
	c *cobra.Command, run func(cmd *cobra.Command, args []string, cl client, out output.Printer) error,
) *cobra.Command {
	addClientFlags(c)
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		cl, err := newClient(cmd, 0)
		if err != nil {
			return err
		}
		defer cl.Close()
		return explainHTTP(run(cmd, args, cl, printer()))
	}
	return c
}

// client is a client of the HTTP API.
type client struct {
	*api.Client
	opts api.QueryOptions // with the value of --datacenter
	stop func()           // of follow
}

// Close closes idle connections.
func (c client) Close() error {
	c.stop()
	return c.Client.Close()
}

// follow closes connections of id to servers whose certificates are no longer
// valid, for example because of a new revocation list next to the CA file, until
// the caller calls stop.
func follow(ctx context.Context, id *tlsutil.Identity) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = id.Run(ctx) // returns nil
	}()
	return func() {
		cancel()
		<-done
	}
}

// newClient returns a client for the flags of cmd. If timeout is 0, the client
// has the default timeout of package api.
func newClient(cmd *cobra.Command, timeout time.Duration) (client, error) {
	cfg := api.ClientConfig{Addr: settings.FlagOrEnv(cmd.Flags(), "http-addr"), Timeout: timeout}
	stop := func() {}
	if strings.HasPrefix(cfg.Addr, "https://") {
		id, err := loadIdentity(cmd, cfg.Addr)
		if err != nil {
			return client{}, err
		}
		cfg.Identity, cfg.ServerName = id, settings.FlagOrEnv(cmd.Flags(), "tls-server-name")
	}
	c, err := api.NewClient(cfg)
	if err != nil {
		return client{}, usageError{err}
	}
	if cfg.Identity != nil {
		stop = follow(cmd.Context(), cfg.Identity)
	}
	return client{c, api.QueryOptions{Datacenter: cmd.Flag("datacenter").Value.String()}, stop}, nil
}

// loadIdentity loads the certificate that the flags name. If flags are missing,
// the text of the usage error is "SUBJECT needs FLAGS".
func loadIdentity(cmd *cobra.Command, subject string) (*tlsutil.Identity, error) {
	var missing []string
	for _, flag := range []string{"ca-file", "cert-file", "key-file"} {
		if settings.FlagOrEnv(cmd.Flags(), flag) == "" {
			missing = append(missing, "--"+flag)
		}
	}
	if missing != nil {
		return nil, usagef("%s needs %s; create a certificate with: wanfed tls cert create --operator --datacenter DC",
			subject, strings.Join(missing, ", "))
	}
	files := tlsutil.Files{
		CA:   settings.FlagOrEnv(cmd.Flags(), "ca-file"),
		Cert: settings.FlagOrEnv(cmd.Flags(), "cert-file"),
		Key:  settings.FlagOrEnv(cmd.Flags(), "key-file"),
	}
	// What Load finds concerns the user. Later changes of the files do not: a
	// request whose connection was closed reports the reason.
	level := new(slog.LevelVar)
	defer level.Set(slog.LevelError)
	return tlsutil.Load(files, settings.FlagOrEnv(cmd.Flags(), "domain"),
		slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level})))
}

// explainHTTP adds the remedy to an error of the HTTP client.
func explainHTTP(err error) error {
	const port = "this may be the server port; the HTTP API has another port (default 8500): " +
		"set --http-addr or WANFED_HTTP_ADDR"
	if s, ok := errors.AsType[*api.StatusError](err); ok && s.Code == http.StatusUnsupportedMediaType {
		return fmt.Errorf("%w; %s", err, port) // a gRPC server responds with this status
	}
	e, ok := errors.AsType[*api.UnreachableError](err)
	if !ok {
		return err
	}
	https := strings.HasPrefix(e.Addr, "https://")
	if !https && errors.Is(e.Err, io.EOF) {
		return fmt.Errorf("%w; %s", err, port)
	}
	if _, unknown := errors.AsType[x509.UnknownAuthorityError](e.Err); unknown {
		return fmt.Errorf("no server of your CA at %s: %s; set --ca-file (WANFED_CA_FILE) to the CA of its certificate",
			e.Addr, tlsutil.DescribeError(e.Err))
	}
	if name, wrongName := errors.AsType[x509.HostnameError](e.Err); wrongName {
		return fmt.Errorf("no server answers at %s: %s; set --tls-server-name to one of these names, or create the "+
			"certificate with --additional-ipaddress or --additional-dnsname %s", e.Addr,
			tlsutil.DescribeError(e.Err), name.Host)
	}
	if text := tlsutil.DescribeError(e.Err); https && text != e.Err.Error() {
		return fmt.Errorf("no server answers at %s: %s", e.Addr, text)
	}
	return fmt.Errorf("%w; check that a server runs there, or set --http-addr or WANFED_HTTP_ADDR", err)
}

// completeFrom returns the completions of list. It returns none if no server
// responds within a second.
func completeFrom(
	cmd *cobra.Command, list func(context.Context, client) []cobra.Completion,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	cl, err := newClient(cmd, time.Second)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), time.Second)
	defer cancel()
	return list(ctx, cl), cobra.ShellCompDirectiveNoFileComp
}

// completeDatacenters completes names of datacenters.
func completeDatacenters(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return completeFrom(cmd, func(ctx context.Context, cl client) []cobra.Completion {
		dcs, _ := cl.Datacenters(ctx, api.QueryOptions{})
		return dcs
	})
}

// operatorTimeout limits one gRPC call of an operator.
const operatorTimeout = 45 * time.Second

// operator calls the gRPC services of a server with the certificate of an
// operator.
type operator struct {
	server    string // host:port of a server or gateway; "": found through the HTTP API
	node      string // name of the server; "": any server
	dc        string // datacenter to call; set by connect
	inPrimary bool   // the default of --datacenter is the primary, not the local datacenter
}

// addFlags adds the client flags and --server to c.
func (o *operator) addFlags(c *cobra.Command) {
	addClientFlags(c)
	c.Flags().StringVar(&o.server, "server", "",
		"`host:port` of a server port, or of a gateway, in place of --http-addr; needs --datacenter")
}

// connect connects to a server. The caller calls closeAll at the end.
func (o *operator) connect(cmd *cobra.Command) (cc *grpc.ClientConn, closeAll func(), err error) {
	if err := o.checkFlags(cmd); err != nil {
		return nil, nil, err
	}
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil {
		return nil, nil, err
	}
	if o.server == "" {
		if err := o.find(cmd); err != nil {
			return nil, nil, err
		}
	}
	cc, closeConn, err := api.DialServer(cmd.Context(), id, o.server, o.node, o.dc)
	if err != nil {
		return nil, nil, err
	}
	stop := follow(cmd.Context(), id)
	return cc, func() { closeConn(); stop() }, nil
}

func (o *operator) checkFlags(cmd *cobra.Command) error {
	var errs []error
	o.dc = cmd.Flag("datacenter").Value.String()
	for _, f := range []struct{ flag, value string }{{"datacenter", o.dc}, {"node", o.node}} {
		if err := tlsutil.CheckLabel(f.value); f.value != "" && err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", f.flag, err))
		}
	}
	if o.server != "" {
		if o.dc == "" {
			errs = append(errs, errors.New("--datacenter is required with --server"))
		}
		if _, _, err := net.SplitHostPort(o.server); err != nil {
			errs = append(errs, fmt.Errorf("--server: %w; write host:port", err))
		}
	}
	if err := settings.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// find sets o.dc and o.server through the HTTP API: o.server to the server port of
// the responding server, or, for another datacenter, to the LAN address of a
// local gateway.
func (o *operator) find(cmd *cobra.Command) error {
	cl, err := newClient(cmd, 0)
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx := cmd.Context()
	st, err := cl.Status(ctx, api.QueryOptions{})
	if err != nil {
		return explainHTTP(err)
	}
	if o.dc == "" {
		o.dc = st.Datacenter
		if o.inPrimary {
			o.dc = st.PrimaryDatacenter
		}
	}
	if o.dc == st.Datacenter {
		members, err := cl.Members(ctx, false, api.QueryOptions{})
		for _, m := range members {
			if m.Name == st.Node {
				o.server = net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port)))
				return nil
			}
		}
		return cmp.Or(explainHTTP(err), fmt.Errorf("%s is not a member of its gossip pool; set --server", st.Node))
	}
	gateways, _, err := cl.MeshGateways(ctx, api.QueryOptions{})
	for _, g := range gateways[st.Datacenter] {
		if g.Healthy() {
			o.server = cmp.Or(g.Service.Addr("lan"), "-")
			return nil
		}
	}
	return cmp.Or(explainHTTP(err),
		fmt.Errorf("%s has no healthy gateway to reach %s; set --server", st.Datacenter, o.dc))
}

// callFunc makes one gRPC call.
type callFunc[Resp any] func(ctx context.Context, cc *grpc.ClientConn) (Resp, error)

// addOperatorRead makes c a command that calls f and prints the response with
// show. operation names the call in errors.
func addOperatorRead[Resp any](
	c *cobra.Command, o *operator, operation string, f callFunc[Resp], show func(out output.Printer, resp Resp) error,
) *cobra.Command {
	o.addFlags(c)
	printer := output.AddFlag(c)
	c.Args = noArgs
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		resp, err := callServer(cmd, o, operation, "", f)
		if err != nil {
			return err
		}
		return show(printer(), resp)
	}
	return c
}

// callServer connects and returns the response of f. operation names the call
// in errors. showCommand is the command that shows the result of a write, and
// "" for reads. If the outcome of a write is unknown, the error names
// showCommand.
func callServer[Resp any](
	cmd *cobra.Command, o *operator, operation, showCommand string, f callFunc[Resp],
) (resp Resp, err error) {
	cc, closeAll, err := o.connect(cmd)
	if err != nil {
		return resp, err
	}
	defer closeAll()
	ctx, cancel := context.WithTimeout(cmd.Context(), operatorTimeout)
	defer cancel()
	stop := output.Waiting(cmd.ErrOrStderr(), "waiting for the servers to respond")
	resp, err = f(ctx, cc)
	stop()
	unknown := showCommand != "" && outcomeUnknown(ctx, err)
	if err = o.explain(ctx, operation, err); unknown {
		err = fmt.Errorf("%w; the outcome is unknown: see %s", err, showCommand)
	}
	return resp, err
}

// explain adds the call and the server to err, and removes the text of gRPC.
func (o *operator) explain(ctx context.Context, operation string, err error) error {
	switch s, ok := status.FromError(err); {
	case err == nil:
		return nil
	case context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	case ok:
		err = errors.New(output.Printable(s.Message()))
	}
	return fmt.Errorf("%s at %s: %w", operation, o.server, err)
}

// outcomeUnknown reports whether a call with ctx may have succeeded although it
// returned err.
func outcomeUnknown(ctx context.Context, err error) bool {
	if err == nil || errors.Is(resource.FromStatus(err), resource.ErrNotLeader) {
		return false
	}
	code := status.Code(err)
	return ctx.Err() != nil || code == codes.Unknown || code == codes.Unavailable || code == codes.DeadlineExceeded
}
