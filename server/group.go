// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/internal/diskspace"
	"github.com/wanfed/wanfed/resource"
)

// group implements httpapi.Group.
type group struct{ c *components }

// RaftPeers implements httpapi.Group. The server calls its leader as itself: the
// HTTP API has authorized the caller.
func (g group) RaftPeers(ctx context.Context, stale bool) ([]*pb.RaftPeer, error) {
	c := g.c
	if stale || c.store.IsLeader() {
		resp, err := c.operator.ListPeersHere(ctx, &pb.ListPeersRequest{})
		return resp.GetPeers(), resource.FromStatus(err)
	}
	ctx, cc, err := c.leaderConn(c.asServer(ctx))
	if err != nil {
		return nil, err
	}
	resp, err := pb.NewOperatorServiceClient(cc).ListPeers(ctx, &pb.ListPeersRequest{})
	return resp.GetPeers(), resource.FromStatus(err)
}

// Coordinates implements httpapi.Group.
func (g group) Coordinates(wan bool) []gossip.Coordinate {
	if wan {
		return g.c.wan.Coordinates()
	}
	return g.c.lan.Coordinates()
}

// Host implements httpapi.Group. On systems other than Linux, a part is missing
// and Errors has the reasons.
func (g group) Host() api.Host {
	out := api.Host{
		Host:           api.HostInfo{OS: runtime.GOOS, KernelArch: runtime.GOARCH},
		Disk:           api.HostDisk{Path: g.c.cfg.DataDir},
		CollectionTime: time.Now().UnixNano(),
	}
	text := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			out.Errors = append(out.Errors, err.Error())
		}
		return string(b)
	}
	var err error
	if out.Host.Hostname, err = os.Hostname(); err != nil {
		out.Errors = append(out.Errors, err.Error())
	}
	if out.Disk.Free, err = diskspace.Free(g.c.cfg.DataDir); err != nil {
		out.Errors = append(out.Errors, fmt.Sprintf("free space: %v", err))
	}
	out.Host.KernelVersion = strings.TrimSpace(text("/proc/sys/kernel/osrelease"))
	uptime, _, _ := strings.Cut(text("/proc/uptime"), ".")
	out.Host.Uptime, _ = strconv.ParseUint(uptime, 10, 64) // 0 if unknown
	out.Memory = parseMemory(text("/proc/meminfo"))
	out.CPU = parseCPUs(text("/proc/cpuinfo"))
	return out
}

// parseMemory parses /proc/meminfo.
func parseMemory(s string) (m api.HostMemory) {
	for line := range strings.Lines(s) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseUint(fields[1], 10, 64)
		switch fields[0] {
		case "MemTotal:":
			m.Total = kib << 10
		case "MemAvailable:":
			m.Available = kib << 10
		case "MemFree:":
			m.Free = kib << 10
		}
	}
	if m.Total > 0 && m.Available <= m.Total {
		m.Used = m.Total - m.Available
		m.UsedPercent = float64(m.Used) / float64(m.Total) * 100
	}
	return m
}

// parseCPUs parses /proc/cpuinfo.
func parseCPUs(s string) []api.HostCPU {
	out := []api.HostCPU{}
	for line := range strings.Lines(s) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "processor":
			n, _ := strconv.Atoi(value)
			out = append(out, api.HostCPU{CPU: n})
		case "model name":
			if len(out) > 0 {
				out[len(out)-1].ModelName = value
			}
		}
	}
	return out
}
