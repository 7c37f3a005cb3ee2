// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Network is a set of namespaces and links.
type Network struct {
	t      testing.TB
	prefix string
	links  int
}

var networks atomic.Int32 // numbers the networks of this process

// NewNetwork returns an empty network. It skips the test where network
// namespaces are not available.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs the ip command (Debian package iproute2)")
	}
	n := &Network{t: t, prefix: fmt.Sprintf("wf%d-%d-", os.Getpid(), networks.Add(1))}
	if out, err := exec.Command("ip", "netns", "add", n.prefix+"probe").CombinedOutput(); err != nil {
		t.Skipf("needs network namespaces: ip netns add: %s", strings.TrimSpace(string(out)))
	}
	n.delete("probe")
	return n
}

// ip runs one ip command.
func (n *Network) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// Namespace adds a namespace with its loopback interface up. It returns the
// name for ip netns exec.
func (n *Network) Namespace(name string) string {
	n.t.Helper()
	full := n.prefix + name
	n.ip("netns", "add", full)
	n.t.Cleanup(func() { n.delete(name) })
	n.ip("-n", full, "link", "set", "lo", "up")
	return full
}

func (n *Network) delete(name string) {
	if out, err := exec.Command("ip", "netns", "del", n.prefix+name).CombinedOutput(); err != nil {
		n.t.Errorf("ip netns del %s%s: %s", n.prefix, name, out)
	}
}

// Bridge adds a namespace that is only a switch. Its device is br0.
func (n *Network) Bridge(name string) string {
	n.t.Helper()
	ns := n.Namespace(name)
	n.ip("-n", ns, "link", "add", "br0", "type", "bridge")
	n.ip("-n", ns, "link", "set", "br0", "up")
	return ns
}

// Plug adds a device dev with an address (with prefix length) to namespace ns
// and connects it to a bridge.
func (n *Network) Plug(ns, dev, addr, bridge string) {
	n.t.Helper()
	n.links++
	port := fmt.Sprintf("p%d", n.links)
	n.ip("-n", ns, "link", "add", dev, "type", "veth", "peer", "name", port, "netns", bridge)
	n.ip("-n", bridge, "link", "set", port, "master", "br0", "up")
	n.Address(ns, dev, addr)
	n.ip("-n", ns, "link", "set", dev, "up")
}

// Hosts writes an /etc/hosts for a namespace, with an address per name.
// Programs started there afterwards read it, and every later change of it.
func (n *Network) Hosts(ns string, names map[string]string) {
	n.t.Helper()
	dir := filepath.Join("/etc/netns", ns) // see ip-netns(8)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { os.RemoveAll(dir) })
	b := []byte("127.0.0.1 localhost\n")
	for name, addr := range names {
		b = fmt.Appendf(b, "%s %s\n", addr, name)
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts"), b, 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// Address adds an address to a device.
func (n *Network) Address(ns, dev, addr string) {
	n.t.Helper()
	n.ip("-n", ns, "addr", "add", addr, "dev", dev)
}

// Flush removes all addresses of a device.
func (n *Network) Flush(ns, dev string) {
	n.t.Helper()
	n.ip("-n", ns, "addr", "flush", "dev", dev)
}

// In runs f on a thread inside a namespace. Sockets that f opens stay there.
func In(ns string, f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine and takes the namespace with it
		fd, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			errc <- fmt.Errorf("open namespace %s: %w", ns, err)
			return
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			errc <- fmt.Errorf("enter namespace %s: %w", ns, err)
			return
		}
		errc <- f()
	}()
	return <-errc
}

// DialIn returns a dial function that connects from inside a namespace.
// Addresses are IP addresses with ports.
func DialIn(ns string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = In(ns, func() error {
			var d net.Dialer
			c, err = d.DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
}
