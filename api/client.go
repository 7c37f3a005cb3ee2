// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// DefaultHTTPAddr is the default address of a server's HTTP API.
const DefaultHTTPAddr = "http://127.0.0.1:8500"

const (
	defaultTimeout = 15 * time.Second
	maxBody        = 64 << 20 // bytes
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Addr is "host:port" (plain HTTP), "http://host:port" or "https://host:port".
	// Default: DefaultHTTPAddr.
	Addr string
	// TLS is the configuration for https, with the CA and the client certificate
	// that a server requires. Default: the system's CAs and no certificate.
	TLS *tls.Config
	// Timeout is the timeout of one request. The wait of a blocking query is
	// added to it. Default: 15 s.
	Timeout time.Duration
}

// Client calls the HTTP API of one server. Its methods may be called from any
// goroutine. A method returns an *UnreachableError if there is no response, and
// a *StatusError for an error response. Some methods return ErrNotFound, as
// their documentation states.
type Client struct {
	base    string // URL without a trailing slash
	http    *http.Client
	timeout time.Duration
}

// NewClient returns a Client, or an error if cfg is invalid. The client connects
// at its first request. The caller must close the client.
func NewClient(cfg ClientConfig) (*Client, error) {
	base, err := parseAddr(cfg.Addr)
	if err != nil {
		return nil, err
	}
	timeout := cfg.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &Client{
		base:    base,
		timeout: timeout,
		http: &http.Client{
			Transport: &http.Transport{
				// No proxy: the API is called on the loopback or inside a datacenter.
				DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
				TLSClientConfig:     cfg.TLS,
				TLSHandshakeTimeout: 5 * time.Second,
				ForceAttemptHTTP2:   true,
				IdleConnTimeout:     90 * time.Second,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// parseAddr returns the base URL of an address.
func parseAddr(addr string) (string, error) {
	if addr == "" {
		addr = DefaultHTTPAddr
	}
	fail := func(why string) (string, error) {
		return "", fmt.Errorf("HTTP address %q %s; write it like %s", addr, why, DefaultHTTPAddr)
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

// QueryOptions are the options of a read. The zero value reads from the server's
// own datacenter and does not block.
type QueryOptions struct {
	// Datacenter to read from. Default: the server's own.
	Datacenter string
	// Index is QueryMeta.Index of an earlier response. The read blocks until the
	// index changes or Wait has passed. 0: the read does not block.
	Index uint64
	// Wait is the maximum time that the read blocks. Default: DefaultWait.
	// Maximum: MaxWait.
	Wait time.Duration
}

// QueryMeta is the metadata of a response.
type QueryMeta struct {
	// Index is the value for QueryOptions.Index of the next read. 0 if the
	// endpoint does not support blocking.
	Index uint64
	// KnownLeader reports whether the server knows the Raft leader of the
	// datacenter.
	KnownLeader bool
	// LastContact is the time since the server's last contact with the leader, in
	// whole milliseconds.
	LastContact time.Duration
}

func (q QueryOptions) values() url.Values {
	v := url.Values{}
	if q.Datacenter != "" {
		v.Set("dc", q.Datacenter)
	}
	if q.Index > 0 {
		v.Set("index", strconv.FormatUint(q.Index, 10))
		v.Set("wait", EffectiveWait(q.Wait).String())
	}
	return v
}

// get requests path and decodes the response into out.
func (c *Client) get(ctx context.Context, path string, q QueryOptions, extra url.Values, out any) (QueryMeta, error) {
	timeout := c.timeout
	if q.Index > 0 {
		timeout += MaxBlockTime(EffectiveWait(q.Wait))
	}
	rctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	values := q.values()
	maps.Copy(values, extra)
	req, err := http.NewRequestWithContext(rctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return QueryMeta{}, err
	}
	req.URL.RawQuery = values.Encode()
	resp, err := c.http.Do(req)
	if err != nil {
		return QueryMeta{}, c.unreachable(ctx, rctx, timeout, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return QueryMeta{}, c.unreachable(ctx, rctx, timeout, err)
	case len(body) > maxBody:
		return QueryMeta{}, fmt.Errorf("response of %s to %s is larger than %d bytes", c.base, path, maxBody)
	}
	meta := readMeta(resp.Header)
	if resp.StatusCode != http.StatusOK {
		return meta, c.statusError(resp, body)
	}
	return meta, c.decodeError(path, json.Unmarshal(body, out))
}

func readMeta(h http.Header) QueryMeta {
	index, _ := strconv.ParseUint(h.Get(HeaderIndex), 10, 64) // absent: 0
	ms, _ := strconv.ParseInt(h.Get(HeaderLastContact), 10, 64)
	return QueryMeta{
		Index:       index,
		KnownLeader: h.Get(HeaderKnownLeader) == "true",
		LastContact: time.Duration(ms) * time.Millisecond,
	}
}

// Headers of a response.
const (
	HeaderIndex       = "X-Consul-Index"
	HeaderKnownLeader = "X-Consul-Knownleader" // "true" or "false"
	HeaderLastContact = "X-Consul-Lastcontact" // milliseconds
	// HeaderCause contains the cause of an error whose body has Consul's fixed
	// text.
	HeaderCause = "X-Wanfed-Cause"
)
