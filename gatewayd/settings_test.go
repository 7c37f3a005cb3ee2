// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/internal/settings"
)

func TestMerge_LiveSettings(t *testing.T) {
	now, next := DefaultSettings(), DefaultSettings()
	now.LAN, now.WANDeny = "10.0.0.5:8444", []string{"192.0.2.0/24"}
	next.LAN, next.DrainTime = "10.0.0.6:8444", "1h"
	merged := now
	changed, fixed := settings.Merge(&merged, &next)
	if merged.LAN != now.LAN || merged.DrainTime != "1h" || merged.WANDeny != nil {
		t.Errorf("Merge() = %+v, want the lan of now and the live settings of next", merged)
	}
	if want := []string{"wan_deny", "drain_time"}; !slices.Equal(changed, want) {
		t.Errorf("changed = %v, want %v", changed, want)
	}
	if want := []string{"lan"}; !slices.Equal(fixed, want) {
		t.Errorf("fixed = %v, want %v", fixed, want)
	}
	if now.WANDeny == nil {
		t.Error("wan_deny of now = nil, want it unchanged")
	}
}

// limitErrors returns the errors of checkLimits.
func limitErrors(s Settings) error {
	var errs errorList
	s.checkLimits(&errs)
	return settings.Join(errs...)
}

func TestCheckLimits_Valid(t *testing.T) {
	s := DefaultSettings()
	s.LANAllow = []string{"10.0.0.0/8", "2001:db8::/32", "192.0.2.1", "2001:db8::1"}
	s.WANDeny = []string{"0.0.0.0/0"}
	s.MaxConns, s.MaxPerSource, s.ShutdownDelay = 100000, -1, "0s"
	if err := limitErrors(s); err != nil {
		t.Errorf("checkLimits() = %v, want no errors", err)
	}
}

func TestCheckLimits_Invalid(t *testing.T) {
	s := DefaultSettings()
	s.MaxPerUpstream = -1
	s.ProxyProtocol = []string{"balancer"}
	s.WANAllow = []string{"10.0.0.0/33", "10.0.0.0/8"}
	s.LANDeny = []string{"10.1.2.3/8", "fe80::1%eth0", "host"}
	s.MaxConns, s.AccessLogSample, s.DrainTime, s.HotRestartDrainTime = -1, 0, "2", "-1s"
	err := limitErrors(s)
	if n := len(settings.Split(err)); n != 10 {
		t.Fatalf("checkLimits() = %d errors, want 10:\n%v", n, err)
	}
	for _, want := range []string{
		`wan_allow: "10.0.0.0/33" is not a network`, `lan_deny: "fe80::1%eth0" is not a network`,
		`lan_deny: "10.1.2.3/8" has host bits; write 10.0.0.0/8 for the network or 10.1.2.3 for the address`,
		`lan_deny: "host" is not a network`, `proxy_protocol: "balancer" is not a network`,
		"max_conns is -1: must be 0 to", "max_conns_per_upstream is -1: must be 0 to",
		"access_log_sample is 0: must be 1 to", `drain_time "2" is not a duration`, `hot_restart_drain_time "-1s"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("checkLimits() = %v, want %q in it", err, want)
		}
	}
}

func TestCheckLimits_OutOfRange(t *testing.T) {
	s := DefaultSettings()
	s.MaxConns, s.MaxPerSource, s.MaxPerUpstream, s.AccessLogSample = math.MaxInt, -2, math.MaxInt, math.MaxInt
	s.ShutdownDelay, s.DrainTime, s.HotRestartDrainTime = "2h", "1000h", "1000000h"
	got := fmt.Sprint(limitErrors(s))
	for _, want := range []string{
		"7 errors:", "max_conns_per_source is -2: must be -1 to",
		"shutdown_delay is 2h: must be 1h0m0s or less; a stopping gateway",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("checkLimits() = %s, want %q in it", got, want)
		}
	}
}

func TestPolicy_MaxPerSource(t *testing.T) {
	s := DefaultSettings()
	for set, want := range map[int]int{0: 75, -1: -1, 10: 10} {
		s.MaxPerSource = set
		if got := s.policy(listenerWAN, 100).MaxPerSource; got != want {
			t.Errorf("policy().MaxPerSource with max_conns_per_source %d and max_conns 100 = %d, want %d",
				set, got, want)
		}
	}
}

func BenchmarkReadRoutes(b *testing.B) {
	for _, n := range []int{100, 10000} {
		path := filepath.Join(b.TempDir(), "routes.hcl")
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "route \"*.server.dc%d.wanfed\" { to = [\"10.0.0.1:1\"] }\n", i)
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := ReadRoutes(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
