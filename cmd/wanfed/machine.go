// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

// layout has the places of the files of one machine.
type layout struct {
	conf string // settings and certificates
	data string // data, logs and pid files; below conf with --dir
	own  bool   // --dir was given
}

const dirUsage = "`directory` of settings, certificates and data (default: /etc/wanfed and /var/lib/wanfed)"

// newLayout returns the layout of the flag --dir.
func newLayout(dir string) (layout, error) {
	if dir == "" {
		return layout{conf: "/etc/wanfed", data: "/var/lib/wanfed"}, nil
	}
	dir, err := filepath.Abs(dir)
	return layout{conf: dir, data: filepath.Join(dir, "data"), own: true}, err
}

func (l layout) caFile() string         { return filepath.Join(l.conf, "ca.pem") }
func (l layout) serverHCL() string      { return filepath.Join(l.conf, "server.hcl") }
func (l layout) gatewayHCL() string     { return filepath.Join(l.conf, "gateway.hcl") }
func (l layout) serverData() string     { return filepath.Join(l.data, "server") }
func (l layout) caDir() string          { return server.CADir(l.serverData()) }
func (l layout) gossipKey() string      { return filepath.Join(l.conf, "gossip-key") }
func (l layout) passphrase() string     { return filepath.Join(l.conf, "ca-passphrase") }
func (l layout) log(name string) string { return filepath.Join(l.data, name+".log") }

// cert returns the files of the certificate of a role.
func (l layout) cert(role tlsutil.Role) tlsutil.Files {
	prefix := filepath.Join(l.conf, role.String())
	return tlsutil.Files{CA: l.caFile(), Cert: prefix + ".pem", Key: prefix + "-key.pem"}
}

// roots returns the directories that hold all files.
func (l layout) roots() []string {
	if l.own {
		return []string{l.conf}
	}
	return []string{l.data, l.conf}
}

// checkFree returns an error if a directory of the layout has files, or if this
// user may not create it.
func (l layout) checkFree() error {
	for _, dir := range l.roots() {
		entries, err := os.ReadDir(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("read %s: %w; choose a directory with --dir", dir, err)
		case len(entries) > 0:
			return fmt.Errorf("%s exists and is not empty; nothing was changed: choose another directory with --dir, "+
				"or move %s away", dir, dir)
		}
		if err := checkCreatable(dir); err != nil {
			return err
		}
	}
	return nil
}

// checkCreatable returns an error if this user may not create root next to other
// directories. It leaves nothing.
func checkCreatable(root string) error {
	parent := filepath.Dir(root)
	for {
		if _, err := os.Stat(parent); !errors.Is(err, fs.ErrNotExist) || parent == filepath.Dir(parent) {
			break
		}
		parent = filepath.Dir(parent)
	}
	staged, err := stage(parent, root)
	if err != nil {
		return err
	}
	return os.Remove(staged)
}

// stage creates a temporary directory in parent, with mode 0700.
func stage(parent, root string) (dir string, err error) {
	dir, err = os.MkdirTemp(parent, "."+filepath.Base(root)+".new-*")
	if err != nil {
		err = fmt.Errorf("create %s: %w; choose a directory with --dir that this user may write", root, err)
	}
	return dir, err
}

// complete reports whether the layout has the files of a machine. All of them
// appear at once: see write.
func (l layout) complete() bool {
	_, err := os.Stat(l.caFile())
	return err == nil
}

// newFiles are the contents of new files by their paths.
type newFiles map[string][]byte

// mode returns the mode of a new file: keys and the passphrase are for the owner
// only.
func (l layout) mode(path string) fs.FileMode {
	if strings.HasSuffix(path, "-key.pem") || path == l.passphrase() || path == l.gossipKey() {
		return 0o600
	}
	return 0o644
}

// write creates all files of the layout, which must be free. After an error no
// file exists.
func (l layout) write(files newFiles) (err error) {
	var done []string
	defer func() {
		if err != nil {
			for _, dir := range done {
				err = errors.Join(err, os.RemoveAll(dir))
			}
		}
	}()
	for _, root := range l.roots() {
		if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
			return fmt.Errorf("create %s: %w", root, err)
		}
		staged, err := stage(filepath.Dir(root), root)
		if err != nil {
			return err
		}
		done = append(done, staged)
		for path, content := range files {
			rel, err := filepath.Rel(root, path)
			if err != nil || !filepath.IsLocal(rel) {
				continue // a file of the other root
			}
			to := filepath.Join(staged, rel)
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(to, content, l.mode(path)); err != nil {
				return err
			}
		}
		if err := l.chown(staged); err != nil {
			return err
		}
		if err := os.Remove(root); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // it has a file now
		}
		if err := os.Rename(staged, root); err != nil {
			return fmt.Errorf("create %s: %w", root, err)
		}
		done[len(done)-1] = root
	}
	return nil
}

// serviceUser is the user of the units of a package.
const serviceUser = "wanfed"

// unitUser returns the user that runs the units: serviceUser if the system has
// it, and otherwise root.
func unitUser() string {
	if _, err := user.Lookup(serviceUser); err == nil {
		return serviceUser
	}
	return "root"
}

// chown makes the files of a directory belong to the user of the units.
func (l layout) chown(dir string) error {
	u, err := user.Lookup(serviceUser)
	if l.own || os.Geteuid() != 0 || err != nil {
		return nil
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, gid))
	})
}

// addresses are the addresses of the processes of a machine.
type addresses struct {
	wan        string // host:port that other datacenters dial; empty without a gateway
	lan        string // IP address of this machine in its datacenter
	serverPort int
	lanPort    int
	httpPort   int
	certLife   time.Duration // of the certificates of a new datacenter
}

// addFlags adds the flags of the addresses.
func (a *addresses) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&a.wan, "wan", "", "`host:port` that other datacenters dial to reach the gateway of this machine")
	f.StringVar(&a.lan, "lan", "", "IP `address` of this machine in its datacenter (default: a private address)")
	f.IntVar(&a.serverPort, "server-port", server.DefaultPort, "port of the server, for servers and gateways of this datacenter")
	f.IntVar(&a.lanPort, "lan-port", 8444, "port of the gateway for servers of this datacenter")
	f.IntVar(&a.httpPort, "http-port", 8500, "port of the HTTP API on 127.0.0.1")
	f.DurationVar(&a.certLife, "cert-life", enroll.DefaultLife,
		"life of the certificates of a new datacenter, which renew themselves at two thirds of it, from 10s")
}

// gatewayAdminAddr is the address of /readyz of a gateway on a machine without a
// server.
const gatewayAdminAddr = "127.0.0.1:9102"

// complete checks the addresses and sets the default of lan.
func (a *addresses) complete(gateway bool) error {
	switch {
	case gateway && a.wan == "":
		return usagef("--wan is required: the host:port that other datacenters dial, for example --wan 198.51.100.1:8443")
	case gateway:
		if err := netaddr.CheckHostPort(a.wan); err != nil {
			return usagef("--wan: %w", err)
		}
	case a.wan != "":
		return usagef("--wan is for a gateway, and this machine has only a server; remove it")
	}
	if err := tlsutil.CheckLife(a.certLife); err != nil {
		return usagef("--cert-life: %w", err)
	}
	for _, p := range []struct {
		flag string
		port int
	}{{"server-port", a.serverPort}, {"lan-port", a.lanPort}, {"http-port", a.httpPort}} {
		if p.port < 1 || p.port > 65535 {
			return usagef("--%s %d: must be 1 to 65535", p.flag, p.port)
		}
	}
	ip, err := server.LANAddress(a.lan)
	if err != nil {
		return usagef("--lan: %w", err)
	}
	a.lan = ip.String()
	return nil
}

// wildcard returns the unspecified address of the family of the machine.
func (a addresses) wildcard() string {
	if strings.Contains(a.lan, ":") {
		return "::"
	}
	return "0.0.0.0"
}

func (a addresses) server() string     { return net.JoinHostPort(a.lan, strconv.Itoa(a.serverPort)) }
func (a addresses) gatewayLAN() string { return net.JoinHostPort(a.lan, strconv.Itoa(a.lanPort)) }
func (a addresses) http() string       { return "127.0.0.1:" + strconv.Itoa(a.httpPort) }

// wanBind returns the listen address of the WAN listener: wan, or any address of
// the machine if the host of wan is not one of them (NAT, DNS name).
func (a addresses) wanBind() string {
	host, port, _ := net.SplitHostPort(a.wan)
	addrs, _ := net.InterfaceAddrs() // without addresses, all are listened on
	for _, addr := range addrs {
		if n, ok := addr.(*net.IPNet); ok && n.IP.Equal(net.ParseIP(host)) {
			return a.wan
		}
	}
	return net.JoinHostPort(a.wildcard(), port)
}

// checkPorts returns an error if a port is in use. The processes that are
// started later report other conflicts.
func (a addresses) checkPorts(withServer, withGateway bool) error {
	type use struct{ addr, remedy string }
	var uses []use
	if withServer {
		uses = append(uses, use{net.JoinHostPort(a.wildcard(), strconv.Itoa(a.serverPort)), ", or choose another port with --server-port"},
			use{a.http(), ", or choose another port with --http-port"})
	}
	if withGateway {
		uses = append(uses, use{a.wanBind(), ", or choose another port with --wan"},
			use{a.gatewayLAN(), ", or choose another address with --lan or --lan-port"})
	}
	if withGateway && !withServer {
		uses = append(uses, use{gatewayAdminAddr, ""})
	}
	var open []net.Listener
	defer func() {
		for _, ln := range open {
			_ = ln.Close()
		}
	}()
	for _, u := range uses {
		ln, err := net.Listen("tcp", u.addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("port of %s is in use; nothing was changed: stop the other process (see: ss -ltnp)%s", u.addr, u.remedy)
		case err != nil:
			return fmt.Errorf("cannot listen on %s (%w); nothing was changed: run as a user who may%s", u.addr, err, u.remedy)
		}
		open = append(open, ln)
	}
	return nil
}
