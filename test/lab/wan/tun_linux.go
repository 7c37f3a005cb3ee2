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
	// MTU of every device.
	MTU = 1400
	// backlog is how many packets a device keeps for the switch, so that none is lost when that comes late: half a second at
	// 100 Mbit/s.
	backlog = 4096
)

// Check says why there can be no WAN here; nil: there can.
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

// openTUN makes a device in a namespace and sets it up. The device lives as long as the descriptor.
func openTUN(ns, dev string) (fd int, err error) {
	err = inNamespace(ns, func() (err error) {
		fd, err = newTUN(dev)
		return err
	})
	return fd, err
}

// newTUN makes a device in the thread's namespace, see the kernel's Documentation/networking/tuntap.rst.
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
		return -1, fmt.Errorf("make TUN device %q: %w", dev, err)
	}
	return fd, nil
}

// setUp sets a device of the thread's namespace up, see netdevice(7).
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
			return fmt.Errorf("set its %s: %w", set.what, err)
		}
	}
	return nil
}

// inNamespace runs f on a thread inside a namespace of ip-netns(8). What f opens stays there.
func inNamespace(ns string, f func() error) error {
	errc := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := visit(ns, f)
		if back {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
		errc <- err
	}()
	return <-errc
}

// visit takes the thread into a namespace and, if it can, back.
func visit(ns string, f func() error) (back bool, err error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true, fmt.Errorf("open the own namespace: %w", err)
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
