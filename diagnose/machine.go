// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/server/status"
	"github.com/wanfed/wanfed/serverd"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// expiryWarning is the remaining life of a certificate below which it is a
	// warning, as of the alert WanfedCertificateExpires. For a certificate with a
	// short life it is a quarter of the life.
	expiryWarning = 7 * 24 * time.Hour
	// slowDisk is the time of one small synchronized write from which on it is
	// a warning. A commit waits for two of them, and an election takes a second.
	slowDisk = 100 * time.Millisecond
	// diskWrites is the number of writes of which the median counts.
	diskWrites = 5
	// diskTimeout bounds the writes.
	diskTimeout = 4 * time.Second
)

// Machine has the settings of the processes of a machine.
type Machine struct {
	Server  *serverd.Settings  // nil: no server, or its file is not readable
	Gateway *gatewayd.Settings // nil: no gateway, or its file is not readable

	findings []Finding
}

// ReadMachine reads files of settings: of a server and a gateway. Errors of the
// files are findings of Run.
func ReadMachine(paths []string) (m Machine) {
	for _, path := range paths {
		f := Finding{Result: OK, Check: "settings " + filepath.Base(path), Cause: path + " is valid", rank: rankSettings}
		if err := m.read(path); err != nil {
			f.Result, f.Cause, f.Remedy = Fail, lines(err), "correct the file; see: wanfed validate"
		}
		m.findings = append(m.findings, f)
	}
	return m
}

func (m *Machine) read(path string) error {
	src, err := settings.ReadFile(path, settings.MaxFile)
	if err != nil {
		return err
	}
	file, err := settings.Parse(path, src)
	if err != nil {
		return err
	}
	return settings.CheckFile(path, file.Body, []settings.Kind{
		func() (any, func() error) {
			s := serverd.DefaultSettings()
			return &s, func() error { m.Server = &s; return s.Check() }
		},
		func() (any, func() error) {
			s := gatewayd.DefaultSettings()
			return &s, func() error { m.Gateway = &s; return s.Check() }
		},
	})
}

// lines joins the errors of err to one line.
func lines(err error) string {
	var all []string
	for _, e := range settings.Split(err) {
		all = append(all, strings.ReplaceAll(e.Error(), "\n", " "))
	}
	return strings.Join(all, "; ")
}

// DC returns the datacenter of the machine, or "".
func (m Machine) DC() string {
	switch {
	case m.Server != nil:
		return m.Server.DC
	case m.Gateway != nil:
		return m.Gateway.DC
	}
	return ""
}

// isForeign reports whether the machine has neither a server nor a gateway. Its
// paths then have no meaning for the processes of the datacenter.
func (m Machine) isForeign() bool { return m.Server == nil && m.Gateway == nil }

// process is what the checks of files need of the server and the gateway.
type process struct {
	name, domain string
	files        tlsutil.Files
	checkFiles   func() error
}

func (m Machine) processes() (out []process) {
	if s := m.Server; s != nil {
		out = append(out, process{"server", s.Domain, tlsutil.Files{CA: s.CAFile, Cert: s.CertFile, Key: s.KeyFile},
			s.CheckFiles})
	}
	if s := m.Gateway; s != nil {
		out = append(out, process{"gateway", cmp.Or(s.Domain, tlsutil.DefaultDomain),
			tlsutil.Files{CA: s.CAFile, Cert: s.CertFile, Key: s.KeyFile}, s.CheckFiles})
	}
	return out
}

// checkFiles checks the certificates and other files that the settings name. It
// sets r.Identity to the first certificate that can be used.
func (r *run) checkFiles() {
	for _, p := range r.Machine.processes() {
		if err := p.checkFiles(); err != nil {
			r.add(rankFiles, Fail, "files of the "+p.name, lines(err), "")
			continue
		}
		if p.files.Cert == "" {
			continue // a gateway of Consul or a standalone one
		}
		id, err := tlsutil.Load(p.files, p.domain, slog.New(slog.DiscardHandler))
		if err != nil {
			r.add(rankFiles, Fail, "certificate of the "+p.name, lines(err), "")
			continue
		}
		if r.Identity == nil || p.name == "server" {
			r.Identity = id
		}
		r.checkExpiry(p.name, id)
	}
}

func (r *run) checkExpiry(name string, id *tlsutil.Identity) {
	left := time.Until(id.Expiry())
	days := int(left / (24 * time.Hour))
	if life := id.Leaf().NotAfter.Sub(id.Leaf().NotBefore); left < min(expiryWarning, life/4) {
		remedy := "create a new one: wanfed tls cert create"
		if tlsutil.Enrolled(id.Leaf()) {
			remedy = "renew it: wanfed tls renew; read in the log of the " + name + " why it has not renewed itself"
		}
		r.add(rankFiles, Warn, "certificate of the "+name, fmt.Sprintf("%s or its CA expires in %d days, at %s",
			id.Peer(), days, id.Expiry().UTC().Format(time.RFC3339)), remedy)
		return
	}
	r.add(rankFiles, OK, "certificate of the "+name, fmt.Sprintf("%s, %d days left, key and CA match", id.Peer(), days), "")
}

// checkDisk measures synchronized writes to the data directory.
func (r *run) checkDisk(ctx context.Context) {
	s := r.Machine.Server
	if s == nil || s.DataDir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	written := make(chan time.Duration, diskWrites)
	done := make(chan error, 1) // a write to a disk that does not respond cannot be cancelled
	go func() { done <- writeSynced(s.DataDir, written) }()
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-done:
	}
	var times []time.Duration
	for range len(written) {
		times = append(times, <-written)
	}
	result, cause, remedy := diskFinding(s.DataDir, times, err)
	r.add(rankMachine, result, "disk", cause, remedy)
}

// diskFinding returns the finding for synchronized writes to dir with these
// times. err is the error of the next write. It is that of a context if the time
// was over before diskWrites writes.
func diskFinding(dir string, times []time.Duration, err error) (result Result, cause, remedy string) {
	const faster = "use a faster disk for data_dir, or move other load away"
	isLate := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	switch {
	case isLate && len(times) == 0:
		return Fail, fmt.Sprintf("no small write to %s completed within %v", dir, diskTimeout),
			"check the disk: the server cannot commit"
	case isLate:
		return Warn, fmt.Sprintf("slow: only %d of %d small writes to %s completed within %v",
			len(times), diskWrites, dir, diskTimeout), faster
	case errors.Is(err, os.ErrNotExist):
		return OK, dir + " is not created yet", ""
	case errors.Is(err, os.ErrPermission):
		return Warn, fmt.Sprintf("not checked: this user may not write to %s", dir), "run as the user of the server"
	case err != nil:
		return Fail, fmt.Sprintf("cannot write to %s: %v", dir, err), "free space, or repair the file system"
	}
	slices.Sort(times)
	median := times[len(times)/2].Round(10 * time.Microsecond)
	if median > slowDisk {
		return Warn, fmt.Sprintf("slow: a write to %s with fsync takes %v, more than %v", dir, median, slowDisk), faster
	}
	return OK, fmt.Sprintf("a write to %s with fsync takes %v", dir, median), ""
}

// writeSynced writes 4 KiB to a file in dir diskWrites times, each time
// synchronized, and sends the time of each write.
func writeSynced(dir string, written chan<- time.Duration) error {
	f, err := os.CreateTemp(dir, ".diagnose-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	for range diskWrites {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4<<10)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		written <- time.Since(start)
	}
	return nil
}

// port is a listen address of a process of the machine.
type port struct {
	process, setting, addr string
}

func (m Machine) ports() (out []port) {
	if s := m.Server; s != nil && s.Port >= 0 {
		n := strconv.Itoa(cmp.Or(s.Port, server.DefaultPort))
		out = append(out, port{"server", "port", net.JoinHostPort(s.Bind, n)})
	}
	if g := m.Gateway; g != nil {
		for _, p := range []port{{"gateway", "lan", g.LAN}, {"gateway", "wan", cmp.Or(g.WANBind, g.WAN)}} {
			if p.addr != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

// checkPorts checks that each port is free, or that a process of this datacenter
// listens on it.
func (r *run) checkPorts(ctx context.Context, serverRuns bool) {
	for _, p := range r.Machine.ports() {
		check := "port " + p.addr
		err := listenable(p.addr)
		switch {
		case err == nil && p.process == "gateway" && serverRuns:
			r.add(rankMachine, Warn, check, "nothing listens there, although a server runs",
				"start the gateway: wanfed gateway, or read its log")
		case err == nil:
			r.add(rankMachine, OK, check, "free", "")
		case errors.Is(err, syscall.EADDRINUSE):
			r.checkListener(ctx, p, check)
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			remedy := "set it to an address of this machine"
			if p.setting == "wan" {
				remedy = "set wan_bind to the address on this machine that the NAT forwards to"
			}
			r.add(rankMachine, Fail, check, "not an address of this machine", remedy)
		default:
			r.add(rankMachine, Warn, check, fmt.Sprintf("cannot listen: %v", err), "run as the user of the "+p.process)
		}
	}
}

// listenable returns an error if this process cannot listen at addr.
func listenable(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	return ln.Close()
}

// checkListener checks what listens on a port that is in use.
func (r *run) checkListener(ctx context.Context, p port, check string) {
	d := r.dialer(listenerTimeout)
	if d == nil {
		r.add(rankMachine, Warn, check, "in use, not checked without a certificate", "")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listenerTimeout)
	defer cancel()
	_, err := d.Probe(ctx, r.Identity.Peer().DC, wanfed.Path{Addr: p.addr}, 0)
	switch class := wanfed.ClassOf(err); {
	case err == nil, p.process == "gateway" && (class == wanfed.FailureUnknownName || class == wanfed.FailureUpstream):
		r.add(rankMachine, OK, check, "served by this datacenter", "")
	case class == wanfed.FailureTimeout && p.process == "gateway":
		r.add(rankMachine, Fail, check, "accepts connections and does not respond",
			"the gateway, or the server behind it, is stuck: read their logs, and restart it")
	case class == wanfed.FailureTimeout:
		r.add(rankMachine, Fail, check, "accepts connections and does not respond",
			"the server is stuck: read its log, and restart it")
	case class == wanfed.FailureRefused:
		r.add(rankMachine, Warn, check, "in use, and nothing listens there: a program has an outgoing connection from it",
			"choose a "+p.setting+" outside the range of outgoing connections (see: sysctl net.ipv4.ip_local_port_range)")
	default:
		r.add(rankMachine, Fail, check, fmt.Sprintf("used by another program: %s", tlsutil.DescribeError(err)),
			"stop that program (see: ss -ltnp), or change "+p.setting)
	}
}

// checkAddresses checks the settings for mistakes with NAT.
func (r *run) checkAddresses() {
	s, g := r.Machine.Server, r.Machine.Gateway
	if g != nil && g.WAN != "" {
		check := "WAN address " + g.WAN
		if status.IsPrivate(g.WAN) {
			r.add(rankMachine, Warn, check, "a private address, which other networks cannot reach",
				"behind a NAT, set wan to the address outside, and wan_bind to this one")
		} else {
			r.add(rankMachine, OK, check, kindOf(g.WAN), "")
		}
	}
	if s == nil {
		return
	}
	for _, addr := range s.PrimaryGateways {
		check := "primary gateway " + addr
		switch {
		case g != nil && (addr == g.WAN || addr == g.LAN):
			r.add(rankMachine, Fail, check, "the address of the gateway of this machine",
				"set primary_gateways to the WAN addresses of the gateways of "+s.PrimaryDC)
		case status.IsPrivate(addr):
			r.add(rankMachine, Warn, check, "a private address, which only machines of its network reach",
				"if a NAT is between, use the address outside")
		}
	}
}

// kindOf describes the address of a gateway that is not private.
func kindOf(addr string) string {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return "a DNS name"
	}
	return "not a private address"
}

// describe returns the text of an error on one line.
func describe(err error) string { return strings.ReplaceAll(fmt.Sprint(err), "\n", ", ") }
