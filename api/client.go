// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// DefaultHTTPAddr is where a server's HTTP API is unless configured otherwise.
const DefaultHTTPAddr = "http://127.0.0.1:8500"

const (
	defaultTimeout = 15 * time.Second
	maxAnswer      = 64 << 20 // bytes of a body
)

// ClientConfig says where the HTTP API is.
type ClientConfig struct {
	// Addr is "host:port" (plain HTTP), "http://host:port" or "https://host:port". Default DefaultHTTPAddr.
	Addr string
	// TLS is for https: the CA, and the client certificate that a server demands. nil: the system's CAs and no certificate.
	TLS *tls.Config
	// Timeout bounds one request, the wait of a blocking query aside. Default 15 s.
	Timeout time.Duration
}

// Client asks one server's HTTP API. Its methods may be called from any goroutine. Their errors are *UnreachableError when
// nothing answers, *StatusError when the server refuses, and ErrNotFound where said.
type Client struct {
	base    string // URL without a trailing slash
	http    *http.Client
	timeout time.Duration
}

// NewClient checks cfg. It connects at the first request; the caller closes it.
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
				// No proxy: the API is asked on the loopback or inside a datacenter.
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

// parseAddr makes a base URL of what a user wrote.
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

// QueryOptions of a read. The zero value asks the server itself, at once.
type QueryOptions struct {
	// Datacenter to ask; empty: the server's own.
	Datacenter string
	// Index of an earlier answer: the read blocks until the index is another, or Wait is over. 0: answer at once.
	Index uint64
	// Wait bounds the blocking. 0: DefaultWait; more than MaxWait counts as MaxWait.
	Wait time.Duration
}

// QueryMeta comes with an answer.
type QueryMeta struct {
	// Index to block on next; 0 where an endpoint does not block.
	Index uint64
	// KnownLeader is whether the datacenter asked has a Raft leader that the server knows; LastContact is how long ago the
	// server heard from it, in whole milliseconds.
	KnownLeader bool
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

// get asks for path and decodes the answer into out.
func (c *Client) get(ctx context.Context, path string, q QueryOptions, extra url.Values, out any) (QueryMeta, error) {
	timeout := c.timeout
	if q.Index > 0 {
		timeout += MaxBlockTime(EffectiveWait(q.Wait))
	}
	rctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	values := q.values()
	for k, v := range extra {
		values[k] = v
	}
	req, err := http.NewRequestWithContext(rctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return QueryMeta{}, err
	}
	req.URL.RawQuery = values.Encode()
	resp, err := c.http.Do(req)
	if err != nil {
		return QueryMeta{}, c.noAnswer(ctx, rctx, timeout, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return QueryMeta{}, c.noAnswer(ctx, rctx, timeout, err)
	case len(body) > maxAnswer:
		return QueryMeta{}, fmt.Errorf("answer of %s to %s is larger than %d bytes", c.base, path, maxAnswer)
	}
	meta := readMeta(resp.Header)
	if resp.StatusCode != http.StatusOK {
		return meta, c.refused(resp, body)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return meta, fmt.Errorf("answer of %s to %s is not what a wanfed server sends: %w; is something else listening there?",
			c.base, path, err)
	}
	return meta, nil
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

// Headers of an answer.
const (
	HeaderIndex       = "X-Consul-Index"
	HeaderKnownLeader = "X-Consul-Knownleader" // "true" or "false"
	HeaderLastContact = "X-Consul-Lastcontact" // milliseconds
	// HeaderCause says, beside a body with Consul's fixed text, what really happened.
	HeaderCause = "X-Wanfed-Cause"
)
