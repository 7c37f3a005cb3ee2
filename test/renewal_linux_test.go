// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

// TestRenewal runs two datacenters whose certificates have a short life. They
// renew their certificates while every server receives requests, also the second
// server and the second gateway of dc1, whose servers reach the CA through
// another one. No request fails, and no connection is lost.
func TestRenewal(t *testing.T) {
	t.Parallel()
	life, run := longer(time.Minute, 10*time.Second), longer(10*time.Minute, 12*time.Second)
	m := enrollNetwork(t, func(i int) string { return fmt.Sprintf("198.51.100.%d/24", i) }, 4)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443", "--cert-life", life.String())
	m[1].wanfed("", "join", m[0].wanfed("", "token", "issue", "--dc", "dc2"), "--wan", "198.51.100.2:8443",
		"--cert-life", life.String())
	m[2].wanfed("", "join", m[0].wanfed("", "token", "issue", "--role", "server"))
	m[3].wanfed("", "join", m[0].wanfed("", "token", "issue", "--role", "gateway"), "--wan", "198.51.100.4:8443")
	logs := map[string]string{
		"srv1 of dc1": m[0].dir + "/data/server.log", "gw1 of dc1": m[0].dir + "/data/gateway.log",
		"srv1 of dc2": m[1].dir + "/data/server.log", "gw1 of dc2": m[1].dir + "/data/gateway.log",
		"srv2 of dc1": m[2].dir + "/data/server.log", "gw2 of dc1": m[3].dir + "/data/gateway.log",
	}
	down := func() (n int) {
		for _, log := range logs {
			n += len(linesOf(t, log, regexp.MustCompile(`msg="(gossip link down|connections closed)`)))
		}
		return n
	}
	before := down()
	ctx, cancel := context.WithTimeout(t.Context(), run)
	defer cancel()
	var clients sync.WaitGroup
	for _, c := range []struct {
		at enrolled
		dc string
	}{{m[0], "dc2"}, {m[1], "dc1"}, {m[2], "dc2"}, {m[2], "dc1"}} {
		clients.Go(func() { c.at.request(ctx, "/v1/catalog/nodes?dc="+c.dc) })
	}
	clients.Wait()
	if n := down(); n != before {
		t.Errorf("%d lines about lost connections, want none", n-before)
	}
	for _, one := range m[:2] { // at once, by hand
		if out := one.wanfed("", "tls", "renew"); strings.Count(out, "renewed ") != 3 {
			t.Errorf("wanfed tls renew in %s = %s, want three certificates", one.ns, out)
		}
	}
	least := int(run/(life*2/3)) - 2
	for name, log := range logs {
		renewed := linesOf(t, log, regexp.MustCompile(`msg="certificate renewed"`))
		if len(renewed) < max(1, least) {
			t.Errorf("%s has renewed its certificate %d times, want at least %d", name, len(renewed), max(1, least))
		}
		if failed := linesOf(t, log, regexp.MustCompile(`cannot renew`)); len(failed) > 0 {
			t.Errorf("%s: %s", name, failed[0])
		}
	}
	// Both certificate lists have all servers and gateways, with their datacenters.
	for _, one := range m[:2] {
		out := strings.Join(strings.Fields(one.wanfed("", "tls", "status")), " ")
		for _, want := range []string{"dc1 server srv1", "dc1 server srv2", "dc1 gateway gw1", "dc1 gateway gw2",
			"dc2 server srv1", "dc2 gateway gw1"} {
			if !strings.Contains(out, want+" 20") || strings.Count(out, " true") != 6 {
				t.Errorf("wanfed tls status in %s = %s, want %s, and six that renew", one.ns, out, want)
			}
		}
	}
	for _, one := range m[:3] {
		body := one.get(t.Context(), "/metrics")
		for _, want := range []string{"wanfed_tls_ended_total 0\n", "wanfed_certificate_renewals_total{result=\"failed\"} 0\n"} {
			if !strings.Contains(body, want) {
				t.Errorf("metrics of %s without %q", one.ns, want)
			}
		}
		if out := one.wanfed("", "status"); !strings.Contains(out, "all 2 datacenters are ok") {
			t.Errorf("status in %s =\n%s", one.ns, out)
		}
	}
}

// linesOf returns the lines of a log that match re.
func linesOf(t *testing.T, log string, re *regexp.Regexp) (found []string) {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if re.MatchString(strings.TrimSpace(line)) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// request sends requests to the local server until ctx ends. None may fail.
func (e enrolled) request(ctx context.Context, path string) {
	n := 0
	for ; ctx.Err() == nil; n++ {
		e.get(e.Context(), path)
		time.Sleep(20 * time.Millisecond) // a moderate load
	}
	e.Logf("%s in %s: %s requests", path, e.ns, strconv.Itoa(n))
}

// get returns the body of a response of the local server.
func (e enrolled) get(ctx context.Context, path string) string {
	e.Helper()
	transport := &http.Transport{DialContext: lab.DialIn(e.ns), DisableKeepAlives: true}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8500"+path, nil)
	if err != nil {
		e.Error(err)
		return ""
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		e.Errorf("GET %s in %s = %v, want nil", path, e.ns, err)
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		e.Errorf("GET %s in %s = %s, %v, want 200: %s", path, e.ns, resp.Status, err, b)
	}
	return string(b)
}
