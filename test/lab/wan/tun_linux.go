// SPDX-License-Identifier: MPL-2.0

package wan

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	// MTU is the MTU of every device, in bytes.
	MTU = 1400
	// backlog is how many packets a device queues for the switch. No packet is
	// lost when the switch is late by up to half a second at 100 Mbit/s.
	backlog = 4096
)

// Check returns nil if this system can run a WAN. Otherwise the error names
// what is missing.
func Check() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root for network namespaces and TUN devices")
	}
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("needs %s (kernel module tun): %w", tunDevice, err)
	}
	return unix.Close(fd)
}

// openTUN creates a device in a namespace and sets it up. The kernel deletes
// the device when the descriptor is closed.
func openTUN(ns, dev string) (fd int, err error) {
	err = inNamespace(ns, func() (err error) {
		fd, err = newTUN(dev)
		return err
	})
	return fd, err
}

// newTUN creates a device in the namespace of the calling thread, see the
// kernel's Documentation/networking/tuntap.rst.
func newTUN(dev string) (int, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", tunDevice, err)
	}
	ifr, err := unix.NewIfreq(dev)
	if err == nil {
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = setUp(dev)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("create TUN device %q: %w", dev, err)
	}
	return fd, nil
}

// setUp sets the MTU, the queue length and the flags of a device in the
// namespace of the calling thread, see netdevice(7).
func setUp(dev string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(s)
	ifr, err := unix.NewIfreq(dev)
	if err != nil {
		return err
	}
	for _, set := range []struct {
		what  string
		req   uint
		value func()
	}{
		{"MTU", unix.SIOCSIFMTU, func() { ifr.SetUint32(MTU) }},
		{"queue length", unix.SIOCSIFTXQLEN, func() { ifr.SetUint32(backlog) }},
		{"flags", unix.SIOCSIFFLAGS, func() { ifr.SetUint16(unix.IFF_UP | unix.IFF_NOARP | unix.IFF_POINTOPOINT) }},
	} {
		set.value()
		if err := unix.IoctlIfreq(s, set.req, ifr); err != nil {
			return fmt.Errorf("set %s: %w", set.what, err)
		}
	}
	return nil
}

// inNamespace runs f on a thread inside a namespace of ip-netns(8). Descriptors
// that f opens belong to that namespace.
func inNamespace(ns string, f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := visit(ns, f)
		if back {
			runtime.UnlockOSThread() // otherwise the runtime ends the thread with the goroutine
		}
		errc <- err
	}()
	return <-errc
}

// visit moves the thread into a namespace, calls f, and moves the thread back.
// It returns back = false if the thread could not be moved back.
func visit(ns string, f func() error) (back bool, err error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true, fmt.Errorf("open current namespace: %w", err)
	}
	defer unix.Close(home)
	fd, err := unix.Open("/run/netns/"+ns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true, fmt.Errorf("open namespace %s: %w", ns, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return true, fmt.Errorf("enter namespace %s: %w", ns, err)
	}
	err = f()
	return unix.Setns(home, unix.CLONE_NEWNET) == nil, err
}
