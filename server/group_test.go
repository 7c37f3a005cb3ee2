// SPDX-License-Identifier: MPL-2.0

package server

import (
	"testing"

	"github.com/wanfed/wanfed/api"
)

func TestParseMemory(t *testing.T) {
	got := parseMemory("MemTotal:        1000 kB\nMemFree:  100 kB\nMemAvailable: 250 kB\nX\nHugePages_Total:       0\n")
	want := api.HostMemory{Total: 1000 << 10, Free: 100 << 10, Available: 250 << 10, Used: 750 << 10, UsedPercent: 75}
	if got != want {
		t.Errorf("parseMemory() = %+v, want %+v", got, want)
	}
	if got := parseMemory(""); got != (api.HostMemory{}) {
		t.Errorf("parseMemory() of nothing = %+v, want zeros", got)
	}
}

func TestParseCPUs(t *testing.T) {
	got := parseCPUs("processor\t: 0\nmodel name\t: X 1\n\nprocessor\t: 1\nmodel name\t: X 2\n")
	if len(got) != 2 || got[0] != (api.HostCPU{CPU: 0, ModelName: "X 1"}) || got[1] != (api.HostCPU{CPU: 1, ModelName: "X 2"}) {
		t.Errorf("parseCPUs() = %+v, want two processors", got)
	}
}
