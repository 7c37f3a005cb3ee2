// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"testing"
)

// TestContenders runs each contender once with few items.
func TestContenders(t *testing.T) {
	os.Setenv("KUBE_FEATURE_WatchListClient", "false")
	for name, contender := range contenders {
		t.Run(name, func(t *testing.T) {
			p := newProbe(2 * fanout)
			if err := contender(t.Context(), 2*fanout, p); err != nil {
				t.Fatalf("run = %v, want nil", err)
			}
			for _, r := range rows {
				if p.figures[r.name] <= 0 {
					t.Errorf("%s = %v, want a positive figure", r.name, p.figures[r.name])
				}
			}
		})
	}
}
