// SPDX-License-Identifier: MPL-2.0

package netaddr

import "testing"

func TestHostClass(t *testing.T) {
	for addr, want := range map[string]struct {
		class Class
		name  bool
	}{
		"127.0.0.1:1": {Loopback, false}, "[::1]:1": {Loopback, false}, "[::ffff:127.9.9.9]:1": {Loopback, false},
		"localhost:1": {Loopback, true}, "a.LOCALHOST.:1": {Loopback, true},
		"169.254.169.254:80": {LinkLocal, false}, "[fe80::1]:1": {LinkLocal, false},
		"224.0.0.1:1": {Other, false}, "0.0.0.0:1": {Other, false}, "[::]:1": {Other, false},
		"10.0.0.1:1": {0, false}, "[2001:db8::1]:1": {0, false}, "gw.example:1": {0, true},
	} {
		if got := HostClass(addr); got != want.class || IsName(addr) != want.name {
			t.Errorf("HostClass(%q) = %d, IsName() = %t, want %v", addr, got, IsName(addr), want)
		}
	}
}
