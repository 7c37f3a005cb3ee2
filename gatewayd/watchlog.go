// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/logtail"
	"github.com/wanfed/wanfed/internal/profile"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	logPath = "/log"
	// maxWatchError bounds the text of a refusal in bytes.
	maxWatchError = 1 << 10
)

// logLine is one line of the response of logPath. The first has no text.
type logLine struct {
	Text    string `json:"text"`
	Dropped uint64 `json:"dropped"` // before this line
}

// watchLog streams the log of the gateway to an operator of the datacenter:
// lines of JSON, at the level and in the format of the query.
func (p *process) watchLog(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil {
		http.Error(w, "the log needs https and the certificate of an operator", http.StatusForbidden)
		return
	}
	own := p.identity.Peer()
	caller, err := tlsutil.PeerFromCert(r.TLS.PeerCertificates[0], p.settings.domain())
	if err == nil && profile.Authorize(caller, own) != nil {
		err = fmt.Errorf("%v may not read the log of %v: only operators of %s may", caller, own, own.DC)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	v, err := p.logTail.Open(r.FormValue("level"), r.FormValue("format"))
	if err != nil {
		code := http.StatusBadRequest
		if _, ok := errors.AsType[*logtail.TooManyError](err); ok {
			code = http.StatusTooManyRequests
		}
		http.Error(w, err.Error(), code)
		return
	}
	defer v.Close()
	p.log.Info("log watched", "kind", r.FormValue("level"), "operator", caller.String())
	w.Header().Set("Content-Type", "application/json")
	out, enc := http.NewResponseController(w), json.NewEncoder(w)
	for line := (logLine{}); ; {
		err := errors.Join(out.SetWriteDeadline(time.Now().Add(writeTimeout)), enc.Encode(line), out.Flush())
		if err != nil {
			return // the client has disconnected, or does not read
		}
		next, err := v.Next(r.Context())
		if err != nil {
			return
		}
		line = logLine{next.Text, next.Dropped}
	}
}

// AdminTransport returns a transport for requests to the admin address of a
// gateway of the datacenter of id.
func AdminTransport(id *tlsutil.Identity) *http.Transport {
	name := strings.Join([]string{string(tlsutil.RoleGateway), id.Peer().DC, id.Domain()}, ".")
	return &http.Transport{
		DisableKeepAlives: true,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
			defer cancel()
			raw, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			c, err := id.Client(ctx, raw, name, "http/1.1")
			if err != nil {
				return nil, err // not a nil *tls.Conn
			}
			return c, nil
		},
	}
}

// WatchLog calls f with the lines of the log of a running gateway from now on,
// and with the number of lines that were dropped before each one. addr is the
// admin address of the gateway, and id an operator of its datacenter. level and
// format are settings of the log. It returns an error when f fails, when the
// gateway ends, and when ctx ends.
func WatchLog(
	ctx context.Context, addr string, id *tlsutil.Identity, level, format string, f func(line string, dropped uint64) error,
) error {
	query := url.Values{"level": {level}, "format": {format}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+logPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	transport := AdminTransport(id)
	transport.ResponseHeaderTimeout = fetchTimeout
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("no gateway of %s answers at %s: %s; check that it runs with this --admin-addr", id.Peer().DC, addr,
			tlsutil.DescribeError(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxWatchError)) // without it, the status remains
		return fmt.Errorf("gateway at %s: %s: %s", addr, resp.Status, strings.TrimSpace(string(text)))
	}
	for dec := json.NewDecoder(resp.Body); ; {
		var line logLine
		if err := dec.Decode(&line); err != nil {
			return fmt.Errorf("the gateway at %s ended the log: %w", addr, err)
		}
		if line.Text == "" && line.Dropped == 0 {
			continue
		}
		if err := f(line.Text, line.Dropped); err != nil {
			return err
		}
	}
}
