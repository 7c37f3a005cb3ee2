// SPDX-License-Identifier: MPL-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// DefaultHTTPAddr is the default address of a server's HTTP API.
const DefaultHTTPAddr = "http://127.0.0.1:8500"

const (
	defaultTimeout = 15 * time.Second
	maxBody        = 64 << 20 // bytes
	// maxIdleConns bounds the idle connections to a server. Blocking queries that
	// end at the same time keep their connections.
	maxIdleConns = 128
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Addr is "host:port" (plain HTTP), "http://host:port", "https://host:port", or
	// "unix:///path" (plain HTTP over a Unix socket). Several addresses of hosts,
	// separated by commas, are those of servers of one datacenter: the client
	// connects to the first one that accepts a connection. Default:
	// DefaultHTTPAddr.
	Addr string
	// AddrSource names what chose Addr, for errors: "WANFED_HTTP_ADDR".
	// Default: not named.
	AddrSource string
	// Identity is the certificate of the client for https, and has the CAs. A
	// connection to a server whose certificate is no longer valid is closed, while
	// Identity.Run runs. ServerName is the name in the certificate of the server.
	// Default: the host of Addr.
	Identity   *tlsutil.Identity
	ServerName string
	// TLS is the configuration for https in place of Identity, for other servers,
	// such as an agent of Consul. Default: the system's CAs and no certificate.
	TLS *tls.Config
	// Timeout limits one request, in addition to the wait of a blocking query.
	// Default: 15 s.
	Timeout time.Duration
	// Token is the ACL token of the requests to a Consul agent. wanfed's servers
	// ignore it. Default: none.
	Token string
	// TokenFile is the path of a file with the token. Each request reads it, so
	// a replaced token is used. Token has precedence. Default: none.
	TokenFile string
	// Username and Password are for HTTP basic authentication, which a proxy of a
	// Consul agent may require. Default: none.
	Username, Password string
}

// Client calls the HTTP API of one server, or of one of several. Its methods may be called from any
// goroutine. A method returns an *UnreachableError if there is no response, and
// a *StatusError for an error response. Some methods return ErrNotFound, as
// their documentation states.
type Client struct {
	base      string // URL without a trailing slash
	addrs     string // base, and the addresses of further servers
	source    string // ClientConfig.AddrSource
	token     string
	tokenFile string
	username  string
	password  string
	http      *http.Client
	timeout   time.Duration
}

// NewClient returns a Client, or an error if cfg is invalid. The client
// connects at its first request. The caller must close the client.
func NewClient(cfg ClientConfig) (*Client, error) {
	addr, socket := cfg.Addr, ""
	if path, ok := strings.CutPrefix(addr, "unix://"); ok && filepath.IsAbs(path) {
		addr, socket = "http://localhost:80", path // the host of all requests
	}
	base, hosts, err := parseAddrs(addr)
	if err != nil {
		return nil, err
	}
	// No proxy: the API is called on the loopback or inside a datacenter.
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSClientConfig:     cfg.TLS,
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true,
		IdleConnTimeout:     90 * time.Second,
		MaxIdleConnsPerHost: maxIdleConns,
	}
	switch {
	case socket != "":
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "unix", socket)
		}
	case len(hosts) > 1 || cfg.Identity != nil:
		(&failover{hosts: hosts}).use(transport, cfg)
	}
	return &Client{
		base: base, addrs: strings.Join(append([]string{base}, hosts[1:]...), ","),
		source: cfg.AddrSource,
		token:  cfg.Token, tokenFile: cfg.TokenFile, username: cfg.Username, password: cfg.Password,
		timeout: cmp.Or(max(cfg.Timeout, 0), defaultTimeout),
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Addr returns the URL of the first server, without a path.
func (c *Client) Addr() string { return c.base }

// Close closes idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// parseAddr returns the base URL of an address.
func parseAddr(addr string) (string, error) {
	addr = cmp.Or(addr, DefaultHTTPAddr)
	fail := func(problem string) (string, error) {
		return "", fmt.Errorf("HTTP address %q %s; write it like %s", addr, problem, DefaultHTTPAddr)
	}
	full := addr
	if !strings.Contains(addr, "://") {
		full = "http://" + addr
	}
	u, err := url.Parse(full)
	switch {
	case err != nil:
		return fail("is not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return fail("is neither http nor https")
	case u.User != nil, u.RawQuery != "", u.Fragment != "", strings.Trim(u.Path, "/") != "":
		return fail("has more than host and port")
	case u.Hostname() == "":
		return fail("has no host")
	case u.Port() == "":
		return fail("has no port")
	}
	if _, err := strconv.ParseUint(u.Port(), 10, 16); err != nil {
		return fail("has no valid port")
	}
	return u.Scheme + "://" + u.Host, nil
}

// QueryOptions are the options of a read. The zero value reads from the
// server's own datacenter and does not block.
type QueryOptions struct {
	// Datacenter is the datacenter to read from. Default: the server's own.
	Datacenter string
	// Index is QueryMeta.Index of an earlier response. The read blocks until
	// the index changes or Wait has passed. 0: the read does not block.
	Index uint64
	// Hash is QueryMeta.Hash of an earlier response. Some endpoints of a Consul
	// agent block by Hash and not by Index. Index then has no effect.
	Hash string
	// Wait is the maximum time that the read blocks. Default: DefaultWait.
	// Maximum: MaxWait.
	Wait time.Duration
}

// QueryMeta is the metadata of a response.
type QueryMeta struct {
	// Index is the value for QueryOptions.Index of the next read. Index is 0 if
	// the endpoint does not support blocking.
	Index uint64
	// KnownLeader reports whether the server knows the Raft leader of the
	// datacenter.
	KnownLeader bool
	// LastContact is the time since the server's last contact with the leader,
	// in whole milliseconds.
	LastContact time.Duration
	// Hash is the value for QueryOptions.Hash of the next read. It is empty if
	// the endpoint does not support it.
	Hash string
	// Filtered reports that the token may not read a part of the result. The
	// response of a Consul agent does not have this part.
	Filtered bool
}

// blocks reports whether the read may block.
func (q QueryOptions) blocks() bool { return q.Index > 0 || q.Hash != "" }

func (q QueryOptions) values() url.Values {
	v := url.Values{}
	if q.Datacenter != "" {
		v.Set("dc", q.Datacenter)
	}
	if q.blocks() {
		v.Set("wait", EffectiveWait(q.Wait).String())
	}
	if q.Hash != "" {
		v.Set("hash", q.Hash)
	} else if q.Index > 0 {
		v.Set("index", strconv.FormatUint(q.Index, 10))
	}
	return v
}

// get requests path and decodes the response into out.
func (c *Client) get(ctx context.Context, path string, q QueryOptions, extra url.Values, out any) (QueryMeta, error) {
	timeout := c.timeout
	if q.blocks() {
		timeout += MaxBlockTime(EffectiveWait(q.Wait))
	}
	values := q.values()
	maps.Copy(values, extra)
	return c.call(ctx, timeout, http.MethodGet, path, values, nil, out)
}

// call sends a request and decodes the response into out, unless out is nil.
func (c *Client) call(
	ctx context.Context, timeout time.Duration, method, path string, values url.Values, body []byte, out any,
) (QueryMeta, error) {
	rctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := c.send(rctx, method, path, values, body)
	if err != nil {
		return QueryMeta{}, c.unreachable(ctx, rctx, timeout, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return QueryMeta{}, c.unreachable(ctx, rctx, timeout, err)
	case len(text) > maxBody:
		return QueryMeta{}, fmt.Errorf("response of %s to %s is larger than %d bytes", c.base, path, maxBody)
	}
	meta := readMeta(resp.Header)
	switch {
	case resp.StatusCode/100 != 2:
		return meta, c.statusError(resp, text)
	case out == nil:
		return meta, nil
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = text
		return meta, nil
	}
	return meta, c.decodeError(path, json.Unmarshal(text, out))
}

// send sends a request and returns the response.
func (c *Client) send(ctx context.Context, method, path string, values url.Values,
	body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.URL.RawQuery = values.Encode()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	token, err := c.readToken()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set(HeaderToken, token)
	}
	if c.username != "" {
		req.SetBasicAuth(c.username, c.password)
	}
	return c.http.Do(req)
}

// errToken marks an error of the token file.
var errToken = errors.New("read the token")

// readToken returns the token for a request, or "" if there is none.
func (c *Client) readToken() (string, error) {
	if c.token != "" || c.tokenFile == "" {
		return c.token, nil
	}
	b, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errToken, err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("%w: %s is empty; write the secret id of a token to it", errToken, c.tokenFile)
	}
	return token, nil
}

// decodeError returns the error of decoding the response to path, or nil.
func (c *Client) decodeError(path string, err error) error {
	if err != nil {
		return fmt.Errorf("response of %s to %s is not a response of this API: %w; check which program "+
			"listens there",
			c.base, path, err)
	}
	return nil
}

func readMeta(h http.Header) QueryMeta {
	index, _ := strconv.ParseUint(h.Get(HeaderIndex), 10, 64) // absent: 0
	ms, _ := strconv.ParseInt(h.Get(HeaderLastContact), 10, 64)
	return QueryMeta{
		Index:       index,
		KnownLeader: h.Get(HeaderKnownLeader) == "true",
		LastContact: time.Duration(ms) * time.Millisecond,
		Hash:        h.Get(HeaderHash),
		Filtered:    h.Get(HeaderFiltered) == "true",
	}
}

// HeaderToken is the header of a request with the token.
const HeaderToken = "X-Consul-Token"

// Headers of a response.
const (
	HeaderIndex       = "X-Consul-Index"
	HeaderKnownLeader = "X-Consul-Knownleader" // "true" or "false"
	HeaderLastContact = "X-Consul-Lastcontact" // milliseconds
	HeaderHash        = "X-Consul-Contenthash"
	HeaderFiltered    = "X-Consul-Results-Filtered-By-Acls" // "true", or absent
	// HeaderCause has the cause of an error whose body is a fixed text of
	// Consul.
	HeaderCause = "X-Wanfed-Cause"
)
