// SPDX-License-Identifier: MPL-2.0

package checks

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
)

// maxResponseHeader bounds the header of a response, in bytes.
const maxResponseHeader = 64 << 10

// result is the result of one probe.
type result struct{ status, output string }

func critical(format string, args ...any) result {
	return result{catalog.StatusCritical, fmt.Sprintf(format, args...)}
}

// prober makes the requests of one server.
type prober struct {
	server netip.Addr // address of the server
}

// probe performs p until ctx ends.
func (s prober) probe(ctx context.Context, p *pb.Probe) result {
	dialer := s.dialer(catalog.ProbesLoopback(p))
	switch catalog.ProbeType(p) {
	case catalog.TypeHTTP:
		return probeHTTP(ctx, p, dialer)
	case catalog.TypeGRPC:
		return probeGRPC(ctx, p, dialer)
	}
	conn, err := dialer.DialContext(ctx, "tcp", p.GetTcp())
	if err != nil {
		return critical("connect to %s: %s", p.GetTcp(), reason(ctx, err))
	}
	_ = conn.Close() // it was connected: nothing is sent
	return result{catalog.StatusPassing, fmt.Sprintf("connect to %s: success", p.GetTcp())}
}

// dialer returns a dialer that refuses addresses by the rules of
// catalog.CheckProbeAddress, after it has resolved a name.
func (s prober) dialer(loopback bool) *net.Dialer {
	return &net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		addr, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		if err := catalog.CheckProbeAddress(addr.Addr(), s.server, loopback); err != nil {
			return refusedError{err}
		}
		return nil
	}}
}

// refusedError reports an address to which the server may not connect.
type refusedError struct{ error }

func probeHTTP(ctx context.Context, p *pb.Probe, dialer *net.Dialer) result {
	method := cmp.Or(p.GetMethod(), http.MethodGet)
	what := fmt.Sprintf("HTTP %s %s", method, p.GetHttp())
	req, err := http.NewRequestWithContext(ctx, method, p.GetHttp(), nil)
	if err != nil {
		return critical("%s: %s", what, reason(ctx, err))
	}
	req.Header.Set("User-Agent", "wanfed health check")
	for name, h := range p.GetHeader() {
		if strings.EqualFold(name, "Host") && len(h.GetValues()) > 0 {
			req.Host = h.GetValues()[0]
			continue
		}
		req.Header[http.CanonicalHeaderKey(name)] = h.GetValues()
	}
	transport := &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: tlsConfig(p), DisableKeepAlives: true,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := client.Do(req)
	if err != nil {
		return critical("%s: %s", what, reason(ctx, err))
	}
	_ = resp.Body.Close() // the body is not read
	code := fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return result{catalog.StatusPassing, what + ": " + code}
	case resp.StatusCode == http.StatusTooManyRequests:
		return result{catalog.StatusWarning, what + ": " + code}
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return critical("%s: %s: redirects are not followed", what, code)
	}
	return critical("%s: %s", what, code)
}

func probeGRPC(ctx context.Context, p *pb.Probe, dialer *net.Dialer) result {
	addr, service, _ := strings.Cut(p.GetGrpc(), "/")
	what := "gRPC health of " + p.GetGrpc()
	creds := insecure.NewCredentials()
	if p.GetTls() {
		creds = credentials.NewTLS(tlsConfig(p))
	}
	// The dialer resolves the name. Its error is that of the call.
	cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds), grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return critical("%s: %v", what, err)
	}
	defer cc.Close()
	resp, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	switch {
	case err != nil:
		return critical("%s: %s: %s", what, status.Code(err), reason(ctx, err))
	case resp.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return critical("%s: %s", what, resp.GetStatus())
	}
	return result{catalog.StatusPassing, what + ": " + resp.GetStatus().String()}
}

func tlsConfig(p *pb.Probe) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: p.GetTlsServerName(), InsecureSkipVerify: p.GetTlsSkipVerify(),
	}
}

// reason returns the cause of an error, without the parts that repeat the target.
func reason(ctx context.Context, err error) string {
	if refused, ok := errors.AsType[refusedError](err); ok {
		return "refused: " + refused.Error()
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "timeout"
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err.Error()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
