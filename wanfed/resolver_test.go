// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// fakeDNS is a DNS resolver that returns ips and err.
type fakeDNS struct {
	ips   []net.IP
	err   error
	slow  bool // waits for the end of the context
	calls int
}

func (d *fakeDNS) lookup(ctx context.Context, _, _ string) ([]net.IP, error) {
	d.calls++
	if d.slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.ips, d.err
}

// A resolver caches addresses. It returns the last known addresses during an
// outage of DNS.
func TestResolver(t *testing.T) {
	ip := func(n byte) []net.IP { return []net.IP{net.IPv4(198, 51, 100, n)} }
	testutil.Bubble(t, func(t *testing.T) {
		dns := &fakeDNS{}
		r := newResolver(dns.lookup, 5*time.Second)
		check := func(name string, want []net.IP, wantCalls int, wantTime time.Duration) {
			t.Helper()
			dns.calls = 0
			begin := time.Now()
			got, err := r.lookup(t.Context(), "gw.example")
			took := time.Since(begin)
			if !slices.EqualFunc(got, want, net.IP.Equal) || (err == nil) != (want != nil) || dns.calls != wantCalls ||
				took != wantTime {
				t.Errorf("%s: lookup() = %v, %v with %d calls in %v, want %v with %d calls in %v",
					name, got, err, dns.calls, took, want, wantCalls, wantTime)
			}
		}
		check("no address", nil, 1, 0)
		dns.slow = true
		check("timeout without a cached result", nil, 1, 5*time.Second)
		dns.slow, dns.ips = false, ip(1)
		check("first result", ip(1), 1, 0)
		dns.ips = ip(2)
		check("cached", ip(1), 0, 0)
		time.Sleep(lookupTTL)
		check("after lookupTTL", ip(2), 1, 0)
		time.Sleep(time.Hour)
		dns.slow = true
		check("outage", ip(2), 1, staleLookupTimeout)
		check("cached after the outage", ip(2), 0, 0)
		time.Sleep(lookupTTL)
		dns.slow, dns.err = false, errors.New("no such host")
		check("the name does not exist any more", ip(2), 1, 0)
		time.Sleep(lookupTTL)
		dns.err, dns.ips = nil, ip(3)
		check("the name exists again", ip(3), 1, 0)
	})
}

func TestResolver_Cancelled(t *testing.T) {
	r := newResolver((&fakeDNS{slow: true}).lookup, 5*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := r.lookup(ctx, "gw.example"); got != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("lookup() with a cancelled context = %v, %v, want context.Canceled", got, err)
	}
}

// The cache evicts the least recently used name.
func TestResolver_CacheIsBounded(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newResolver((&fakeDNS{ips: []net.IP{net.IPv4(198, 51, 100, 1)}}).lookup, 5*time.Second)
		for i := range maxCachedNames + 10 {
			time.Sleep(time.Nanosecond)
			if _, err := r.lookup(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(r.cache); n != maxCachedNames || r.cache["0"] != nil || r.cache["10"] == nil {
			t.Errorf("cache has %d names, with the oldest %v; want %d names without the 10 oldest",
				n, r.cache["0"] != nil, maxCachedNames)
		}
	})
}
