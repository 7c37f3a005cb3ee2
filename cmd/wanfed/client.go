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
	"slices"
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
	flags.String("context", "", "`name` of a context, see: wanfed context (WANFED_CONTEXT; default: the current one)")
	_ = c.RegisterFlagCompletionFunc("context", completeContexts)
	_ = c.RegisterFlagCompletionFunc("dir", completeDirs)
	c.PreRunE = func(cmd *cobra.Command, _ []string) error { return useTarget(cmd) }
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
		err = run(cmd, args, cl, printer())
		if _, refused := errors.AsType[*api.StatusError](err); refused && cl.opts.Datacenter != "" {
			err = checkDatacenter(cmd.Context(), cl.Client, cl.opts.Datacenter, err)
		}
		return explainHTTP(err)
	}
	return c
}

// checkDatacenter returns an error if no datacenter dc is known, and otherwise
// err.
func checkDatacenter(ctx context.Context, cl *api.Client, dc string, err error) error {
	names, listErr := cl.Datacenters(ctx, api.QueryOptions{})
	if listErr != nil || slices.Contains(names, dc) {
		return err
	}
	return fmt.Errorf("datacenter %q is not known; known are %s%s", dc, strings.Join(names, ", "), didYouMean(names, dc))
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

// closeFollowed calls follow, and returns a function that calls closeConn and
// ends follow.
func closeFollowed(ctx context.Context, id *tlsutil.Identity, closeConn func()) (closeAll func()) {
	stop := follow(ctx, id)
	return func() { closeConn(); stop() }
}

// newClient returns a client for the flags of cmd. If timeout is 0, the client
// has the default timeout of package api.
func newClient(cmd *cobra.Command, timeout time.Duration) (client, error) {
	cfg := api.ClientConfig{
		Addr: settings.FlagOrEnv(cmd.Flags(), "http-addr"), AddrSource: sourceOf(cmd, "http-addr"), Timeout: timeout,
	}
	stop := func() {}
	if strings.HasPrefix(cfg.Addr, "https://") {
		id, err := loadIdentity(cmd, fmt.Sprintf("%s (%s)", cfg.Addr, cfg.AddrSource))
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
			e.Where(), tlsutil.DescribeError(e.Err))
	}
	if name, wrongName := errors.AsType[x509.HostnameError](e.Err); wrongName {
		return fmt.Errorf("no server answers at %s: %s; set --tls-server-name to one of these names, or create the "+
			"certificate with --additional-ipaddress or --additional-dnsname %s", e.Where(),
			tlsutil.DescribeError(e.Err), name.Host)
	}
	if text := tlsutil.DescribeError(e.Err); https && text != e.Err.Error() {
		return fmt.Errorf("no server answers at %s: %s", e.Where(), text)
	}
	return fmt.Errorf("%w; check that a server runs there, or set --http-addr, WANFED_HTTP_ADDR or --context", err)
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
		"`host:port` of a server port, or of a gateway, in place of --http-addr (WANFED_SERVER; default: "+
			defaultServer+", or what --http-addr names)")
}

// addNodeFlag adds --node to a command that describes one server.
func (o *operator) addNodeFlag(c *cobra.Command) {
	c.Flags().StringVar(&o.node, "node", "", "`name` of the server to call (default: the one that responds)")
	_ = c.RegisterFlagCompletionFunc("node", completeServers)
}

// defaultServer is the server port of this machine.
const defaultServer = "127.0.0.1:8300"

// connect connects to a server. The caller calls closeAll at the end.
func (o *operator) connect(cmd *cobra.Command) (cc *grpc.ClientConn, closeAll func(), err error) {
	if err := o.checkFlags(cmd); err != nil {
		return nil, nil, err
	}
	id, err := loadIdentity(cmd, cmd.CommandPath())
	if err != nil {
		return nil, nil, err
	}
	own := id.Peer().DC
	source := sourceOf(cmd, "server")
	if o.server != "" && o.dc == "" && !o.inPrimary {
		o.dc = own
	}
	var local error // of the default address
	switch {
	case o.server != "" && o.dc != "" &&
		(o.dc == own && o.node == "" || source == "--server" || source == settings.EnvName("server")):
	case o.server == "" && !o.inPrimary && o.node == "" && (o.dc == "" || o.dc == own) &&
		sourceOf(cmd, "http-addr") == "the default":
		cc, closeConn, err := api.DialServer(cmd.Context(), id, defaultServer, "", own)
		if err == nil {
			o.server, o.dc = defaultServer, own
			return cc, closeFollowed(cmd.Context(), id, closeConn), nil
		}
		local = err
		fallthrough // the server may have another port, which its HTTP API reports
	default: // the server of a context is any server of its datacenter
		o.server, source = "", "found through the HTTP API"
		if err := o.find(cmd); err != nil {
			if local != nil {
				err = fmt.Errorf("%w; at %s (the default): %w", err, defaultServer, local)
			}
			return nil, nil, err
		}
	}
	cc, closeConn, err := api.DialServer(cmd.Context(), id, o.server, o.node, o.dc)
	if err != nil {
		if source != "--server" {
			err = fmt.Errorf("%w (address: %s)", err, source)
		}
		return nil, nil, err
	}
	return cc, closeFollowed(cmd.Context(), id, closeConn), nil
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
		if o.dc == "" && o.inPrimary && cmd.Annotations[sourceKey+"server"] == "" {
			errs = append(errs, errors.New("--datacenter is required with --server: the name of the primary"))
		}
		errs = append(errs, checkServerAddr(o.server))
	}
	if err := settings.Join(errs...); err != nil {
		return usageError{err}
	}
	return nil
}

// checkServerAddr returns an error if addr is not host:port.
func checkServerAddr(addr string) error {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("--server: %w; write host:port", err)
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
		var names []string
		for _, m := range members {
			if m.Name == cmp.Or(o.node, st.Node) {
				o.server = net.JoinHostPort(m.Addr, strconv.Itoa(int(m.Port)))
				return nil
			}
			names = append(names, m.Name)
		}
		if o.node != "" && err == nil {
			return fmt.Errorf("--node %s is not a server of %s: its servers are %s; set --server if it is new%s", o.node, o.dc,
				strings.Join(names, ", "), didYouMean(names, o.node))
		}
		return cmp.Or(explainHTTP(err), fmt.Errorf("%s is not a member of its gossip pool; set --server", st.Node))
	}
	if err := checkDatacenter(ctx, cl.Client, o.dc, nil); err != nil {
		return err
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
