// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// NeedNFT skips the test if the nft command is missing.
func NeedNFT(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("needs the nft command (Debian package nftables)")
	}
}

// holeTable is the nft table of BlackHole.
const holeTable = "hole"

// BlackHole silently drops every packet that the node sends or receives, on all
// its links. Call NeedNFT first.
func (n *Node) BlackHole() {
	n.dc.lab.t.Helper()
	n.NFT(fmt.Sprintf(`table inet %[1]s {
		chain in  { type filter hook input  priority 0; policy drop; iif lo accept; }
		chain out { type filter hook output priority 0; policy drop; oif lo accept; }
	}`, holeTable))
}

// CutFrom silently drops every packet between the node and others of its
// datacenter. Call NeedNFT first.
func (n *Node) CutFrom(others ...*Node) {
	n.dc.lab.t.Helper()
	var addrs []string
	for _, o := range others {
		addrs = append(addrs, o.LAN)
	}
	set := strings.Join(addrs, ", ")
	n.NFT(fmt.Sprintf(`table inet %[1]s {
		chain in  { type filter hook input  priority 0; policy accept; ip saddr { %[2]s } drop; }
		chain out { type filter hook output priority 0; policy accept; ip daddr { %[2]s } drop; }
	}`, holeTable, set))
}

// DropWAN silently drops every packet at the WAN interface of a gateway. Call
// NeedNFT first.
func (n *Node) DropWAN() {
	n.dc.lab.t.Helper()
	n.NFT(fmt.Sprintf(`table inet %[1]s {
		chain in  { type filter hook input  priority 0; policy accept; iifname wan drop; }
		chain out { type filter hook output priority 0; policy accept; oifname wan drop; }
	}`, holeTable))
}

// Heal ends BlackHole, CutFrom and DropWAN.
func (n *Node) Heal() {
	n.dc.lab.t.Helper()
	n.NFT("delete table inet " + holeTable)
}

// NFT applies rules of nft in the namespace of the node. Call NeedNFT first.
func (n *Node) NFT(rules string) {
	n.dc.lab.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.NS, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.dc.lab.t.Fatalf("nft in %s: %v: %s", n.NS, err, out)
	}
}

// OpenFiles counts the open file descriptors of the process.
func (n *Node) OpenFiles() (int, error) {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.Process.Pid()))
	return len(fds), err
}

// Metrics returns all metrics of a server as text.
func (n *Node) Metrics(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8500/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return string(b), err
}

// Metric returns the sum of a server's metric over all labels.
func (n *Node) Metric(ctx context.Context, name string) (sum float64, err error) {
	text, err := n.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s of %s: %w", name, n.NS, err)
		}
		found, sum = true, sum+v
	}
	if !found {
		return 0, fmt.Errorf("%s has no metric %s", n.NS, name)
	}
	return sum, nil
}
