// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"testing"
)

func TestRedactToken(t *testing.T) {
	for raw, want := range map[string]string{
		"":                             "",
		"dc=dc2&index=7":               "dc=dc2&index=7",
		"token=SECRET":                 "token=...",
		"dc=dc2&Token=SECRET&pretty":   "dc=dc2&Token=...&pretty",
		"t%6fken=SECRET&a=%20":         "t%6fken=...&a=%20",
		"%zz=SECRET":                   "%zz=...",
		"tokens=1&key=token":           "tokens=1&key=token",
		"token=SECRET&token=SECRET2&b": "token=...&token=...&b",
	} {
		if got := redactToken(raw); got != want {
			t.Errorf("redactToken(%q) = %q, want %q", raw, got, want)
		}
	}
}
