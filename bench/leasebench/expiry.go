// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/session"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	expiryDuration = 15 * time.Second
	sessionTTL     = 20 * time.Second
	// parallel is the number of requests that create leases or sessions at the
	// same time.
	parallel = 64
	// limit bounds each wait for an expiry.
	limit = 3 * time.Minute
)

// measureExpiry lets leases expire whose last renewal was one call.
func (s settings) measureExpiry(ctx context.Context, d *datacenter) error {
	leases := pb.NewLeaseServiceClient(d.conns[0])
	renewals := make([]*pb.RenewLeasesRequest_Renewal, s.n)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i := range s.n {
		g.Go(func() error {
			name := fmt.Sprintf("expiry-%d", i)
			resp, err := leases.Acquire(gctx, &pb.AcquireLeaseRequest{
				Name: name, Holder: "leasebench", Duration: durationpb.New(expiryDuration),
			})
			renewals[i] = &pb.RenewLeasesRequest_Renewal{Name: name, Token: resp.GetToken()}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	wctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w, err := pb.NewResourceServiceClient(d.conns[0]).WatchList(wctx, &pb.WatchListRequest{
		Type: lease.Type, NamePrefix: "expiry-",
	})
	if err != nil {
		return err
	}
	sent := time.Now()
	resp, err := leases.Renew(ctx, &pb.RenewLeasesRequest{Renewals: renewals})
	if err != nil || len(resp.GetLost()) > 0 {
		return errors.Join(err, fmt.Errorf("%d leases were lost before the measurement", len(resp.GetLost())))
	}
	received := time.Now()
	gap := d.watchLeader(ctx)
	var first, last time.Time
	for free := 0; free < s.n; {
		ev, err := w.Recv()
		if err != nil {
			return fmt.Errorf("after the expiry of %d: %w", free, err)
		}
		if r := ev.GetUpsert().GetResource(); r != nil && lease.Token(r) == 0 {
			last = time.Now()
			if free++; free == 1 {
				first = last
			}
		}
	}
	fmt.Printf("| leases: first expiry after the earliest deadline | %v | > 0 |\n", ms(first.Sub(sent.Add(expiryDuration))))
	fmt.Printf("| leases: last expiry after the latest deadline | %v | < 1 s |\n", ms(last.Sub(received.Add(expiryDuration))))
	fmt.Printf("| leases: longest time without a known leader | %v | |\n", ms(gap()))
	return nil
}

func ms(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// watchLeader requests the leader from all servers every 50 ms. The returned
// function ends this, and returns the longest time for which a server knew none.
func (d *datacenter) watchLeader(ctx context.Context) (end func() time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	longest := make([]time.Duration, len(d.servers))
	var g errgroup.Group
	for i := range d.servers {
		g.Go(func() error {
			for known := time.Now(); ; {
				rctx, cancel := context.WithTimeout(ctx, time.Second)
				var leader string
				err := d.request(rctx, http.MethodGet, d.url(i)+"/v1/status/leader", nil, &leader)
				cancel()
				if err == nil && leader != "" {
					known = time.Now()
				}
				longest[i] = max(longest[i], time.Since(known))
				if pause(ctx, 50*time.Millisecond) != nil {
					return nil
				}
			}
		})
	}
	return func() time.Duration {
		cancel()
		_ = g.Wait() // its functions return nil
		return max(longest[0], longest[1], longest[2])
	}
}

// url returns the URL of the HTTP API of a server.
func (d *datacenter) url(server int) string {
	return "https://" + strings.TrimPrefix(d.servers[server].HTTP, "http://")
}

// request sends a request to the HTTP API and decodes the response into out.
func (d *datacenter) request(ctx context.Context, method, url string, body, out any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %.200s", method, url, resp.Status, text)
	}
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(text, out)
}

// httpClient returns a client with the certificate of an operator.
func httpClient(files tlsutil.Files) (*http.Client, error) {
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: parallel,
		TLSClientConfig:     &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
	}}, nil
}

// measureSessions lets sessions with one locked key each expire.
func (s settings) measureSessions(ctx context.Context, d *datacenter) error {
	addr := d.url(0)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	begin := time.Now()
	for i := range s.n {
		g.Go(func() error {
			var created struct{ ID string }
			err := d.request(gctx, http.MethodPut, addr+"/v1/session/create",
				map[string]any{"TTL": sessionTTL.String(), "NodeChecks": []string{}, "LockDelay": "0s"}, &created)
			var locked bool
			if err == nil {
				err = d.request(gctx, http.MethodPut, fmt.Sprintf("%s/v1/kv/bench/%d?acquire=%s", addr, i, created.ID), "value", &locked)
			}
			if err == nil && !locked {
				err = fmt.Errorf("key %d was not locked", i)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	fmt.Printf("| sessions: created after | %.1f s | |\n", time.Since(begin).Seconds())
	wctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	w, err := pb.NewResourceServiceClient(d.conns[0]).WatchList(wctx, &pb.WatchListRequest{Type: session.Type})
	if err != nil {
		return err
	}
	gap := d.watchLeader(ctx)
	elected := time.Now()
	if _, err := pb.NewOperatorServiceClient(d.conns[0]).TransferLeader(ctx, &pb.TransferLeaderRequest{}); err != nil {
		return err
	}
	moved := time.Now()
	deadline := sessionTTL + sessionTTL/2
	var first, last time.Time
	for ended := 0; ended < s.n; {
		ev, err := w.Recv()
		if err != nil {
			return fmt.Errorf("after the end of %d: %w", ended, err)
		}
		if ev.GetDelete() != nil {
			last = time.Now()
			if ended++; ended == 1 {
				first = last
			}
		}
	}
	fmt.Printf("| sessions: first end after the earliest deadline | %v | > 0 |\n", ms(first.Sub(elected.Add(deadline))))
	fmt.Printf("| sessions: last end after the deadline | %v | < 1 s |\n", ms(last.Sub(moved.Add(deadline))))
	fmt.Printf("| sessions: longest time without a known leader | %v | |\n", ms(gap()))
	n, err := d.lockedKeys(ctx, addr)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d keys are locked after the end of all sessions", n)
	}
	return err
}

func (d *datacenter) lockedKeys(ctx context.Context, addr string) (n int, err error) {
	var keys []struct{ Session string }
	if err := d.request(ctx, http.MethodGet, addr+"/v1/kv/bench?recurse", nil, &keys); err != nil {
		return 0, err
	}
	for _, k := range keys {
		if k.Session != "" {
			n++
		}
	}
	return n, nil
}
