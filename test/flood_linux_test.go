// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// floodHold is the time for which the client of a flood keeps a connection.
const floodHold = 3 * time.Second

// TestFlood: one client opens connections through a gateway and never finishes
// a TLS handshake. Half of them stop in the middle of the ClientHello, the
// others after it. Another client with a certificate is served through the same
// gateway and through another one. With WANFED_CHAOS=1, and only on a machine
// that does nothing else, its handshakes are fast. Otherwise the flood and the
// limit of the gateway are small, because a busy machine cannot send more.
func TestFlood(t *testing.T) {
	var args []string
	length, pace := longer(20*time.Second, 3*time.Second), longer(25*time.Millisecond, 250*time.Millisecond)
	floodRate := 2500 // connections per second
	if !chaos() {
		t.Parallel()
		args, floodRate = append(args, "--max-rate-per-source", "10"), 250
	}
	l := lab.New(t)
	dc1, dc2 := l.Add(1, 2), l.Add(1, 2) // in dc2 no process runs: its machines are the clients
	attacker, client := dc2.Gateways[0], dc2.Gateways[1]
	srv, flooded, other := dc1.Servers[0], dc1.Gateways[0], dc1.Gateways[1]
	srv.StartServer()
	const admin = "127.0.0.1:9902"
	for _, gw := range dc1.Gateways {
		gw.StartGateway(append(args, "--admin-addr", admin)...)
		logOf(gw.Process).await(t, `msg="server accepts PROXY headers"`)
	}
	id, err := tlsutil.Load(dc2.Servers[0].TLS, tlsutil.DefaultDomain, quiet)
	if err != nil {
		t.Fatal(err)
	}
	measure := func(length time.Duration) map[*lab.Node][]time.Duration {
		out := map[*lab.Node][]time.Duration{}
		for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(pace) {
			for _, gw := range dc1.Gateways {
				took, err := legitimate(t.Context(), client.NS, gw.WANAddr(), id)
				if err != nil {
					t.Errorf("handshake through %s: %v, want nil", gw.Name, err)
				}
				out[gw] = append(out[gw], took)
			}
		}
		return out
	}
	before := measure(longer(5*time.Second, 500*time.Millisecond))

	ctx, stop := context.WithCancel(t.Context())
	var floods sync.WaitGroup
	var opened atomic.Int64
	const threads = 4
	begin := time.Now()
	for range threads {
		floods.Go(func() {
			err := lab.In(attacker.NS, func() error {
				return flood(ctx, net.Dialer{Timeout: 2 * time.Second}, flooded.WANAddr(), floodRate/threads, &opened)
			})
			if err != nil && ctx.Err() == nil {
				t.Errorf("flood: %v", err)
			}
		})
	}
	during := measure(length)
	stop()
	floods.Wait()
	rate := float64(opened.Load()) / time.Since(begin).Seconds()

	refused := gatewayMetric(t, flooded, admin, `wanfed_gateway_refused_total{listener="wan",reason="source_rate"}`)
	if refused == 0 {
		t.Error("connections refused for source_rate = 0, want some")
	}
	logOf(flooded.Process).await(t, `msg="connection refused".* remote=`+attacker.WAN+`:.*reason=source_rate`)
	if n := gatewayMetric(t, other, admin, `wanfed_gateway_refused_total{listener="wan",reason="source_rate"}`); n != 0 {
		t.Errorf("connections refused by the other gateway = %v, want 0", n)
	}
	t.Logf("flood: %.0f connections a second, %.0f refused of %d", rate, refused, opened.Load())
	if chaos() && rate < 0.9*float64(floodRate) {
		t.Errorf("flood = %.0f connections a second, want %d: the machine is too slow for this test", rate, floodRate)
	}
	for _, gw := range dc1.Gateways {
		t.Logf("handshake through %s: before the flood %s; during it %s", gw.Name, quantiles(before[gw]), quantiles(during[gw]))
		p50, p99 := quantile(during[gw], 0.5), quantile(during[gw], 0.99)
		if chaos() && (p50 >= 20*time.Millisecond || p99 >= 200*time.Millisecond) {
			t.Errorf("handshake through %s: p50 %v, p99 %v; want less than 20ms and 200ms", gw.Name, p50, p99)
		}
	}
	awaitWhole(t, l, promptly, "after the flood")
}

// quantile returns the quantile q of times, which it sorts.
func quantile(times []time.Duration, q float64) time.Duration {
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)].Round(10 * time.Microsecond)
}

func quantiles(times []time.Duration) string {
	return fmt.Sprintf("p50 %v, p99 %v, maximum %v (%d)", quantile(times, 0.5), quantile(times, 0.99),
		quantile(times, 1), len(times))
}

// legitimate connects to a server of dc1 with a certificate, and waits for the
// first byte of the server after the handshake.
func legitimate(ctx context.Context, ns, addr string, id *tlsutil.Identity) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	begin := time.Now()
	raw, err := lab.DialIn(ns)(ctx, "tcp", addr)
	if err != nil {
		return time.Since(begin), err
	}
	defer raw.Close()
	raw.SetDeadline(begin.Add(waitLimit))
	c := tls.Client(raw, id.ClientConfig(tlsutil.ServerName("", "dc1", tlsutil.DefaultDomain), "h2"))
	_, err = c.Read(make([]byte, 1)) // the SETTINGS of the server (RFC 9113 section 3.4)
	return time.Since(begin), err
}

// flood opens connections with d at a rate, each with a part of a ClientHello, until
// ctx ends. It keeps each for floodHold, or until another one needs its place.
// It runs on the thread of its caller, which is in a namespace.
func flood(ctx context.Context, d net.Dialer, addr string, rate int, opened *atomic.Int64) error {
	hello, err := helloOf(tlsutil.ServerName("", "dc1", tlsutil.DefaultDomain))
	if err != nil {
		return err
	}
	open := make([]net.Conn, rate*int(floodHold/time.Second)) // a ring
	defer func() {
		for _, c := range open {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i, begin := 0, time.Now(); ctx.Err() == nil; i++ {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		opened.Add(1)
		rand.Read(hello[11:43]) // the random (RFC 8446 section 4.1.2)
		part := hello
		if i%2 == 0 {
			part = hello[:100]
		}
		c.Write(part) // fails if the gateway has refused the connection already
		if old := open[i%len(open)]; old != nil {
			old.Close()
		}
		open[i%len(open)] = c
	}
	return nil
}

// hellos are the results of helloOf, by server name.
var hellos sync.Map

// helloOf returns a copy of the record with a ClientHello for a server name. The keys
// in it are made once: an attacker needs no processor for them.
func helloOf(name string) ([]byte, error) {
	if b, ok := hellos.Load(name); ok {
		return bytes.Clone(b.([]byte)), nil
	}
	recorder := &recordConn{}
	cfg := &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	if err := tls.Client(recorder, cfg).Handshake(); !errors.Is(err, io.EOF) {
		return nil, err
	}
	hellos.Store(name, bytes.Clone(recorder.sent.Bytes()))
	return recorder.sent.Bytes(), nil
}

// recordConn is a connection whose peer never answers.
type recordConn struct {
	net.Conn
	sent bytes.Buffer
}

func (c *recordConn) Write(b []byte) (int, error) { return c.sent.Write(b) }
func (c *recordConn) Read([]byte) (int, error)    { return 0, io.EOF }
func (c *recordConn) Close() error                { return nil }

// gatewayMetric returns a metric of the admin address of a gateway, or 0 if the
// gateway does not have it.
func gatewayMetric(t *testing.T, gw *lab.Node, admin, name string) float64 {
	t.Helper()
	tr := &http.Transport{DialContext: lab.DialIn(gw.NS)}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: waitLimit}).Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}
