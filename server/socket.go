// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/net/netutil"
)

// listenSocket returns the listener of the Unix socket of the HTTP API, or nil
// without one. Processes that may write the file may connect. The socket has its
// mode before another process can connect.
func (c Config) listenSocket() (net.Listener, error) {
	if c.HTTPSocket == "" {
		return nil, nil
	}
	fail := func(err error) (net.Listener, error) { return nil, fmt.Errorf("http_socket: %w", err) }
	gid, err := groupID(c.HTTPSocketGroup)
	if err != nil {
		return fail(err)
	}
	if err := removeSocket(c.HTTPSocket); err != nil {
		return fail(err)
	}
	cfg := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var chmodErr error // on Linux, bind creates the file with the mode of the descriptor
		err := raw.Control(func(fd uintptr) { chmodErr = fchmod(fd, 0o600) })
		return errors.Join(err, chmodErr)
	}}
	ln, err := cfg.Listen(context.Background(), "unix", c.HTTPSocket)
	if err != nil {
		return fail(err)
	}
	if gid >= 0 {
		err = os.Chown(c.HTTPSocket, -1, gid)
	}
	if err == nil {
		err = os.Chmod(c.HTTPSocket, c.HTTPSocketMode)
	}
	if err != nil {
		return fail(errors.Join(err, ln.Close()))
	}
	return netutil.LimitListener(ln, httpPerPeer()), nil
}

// removeSocket removes the socket that an earlier process has left.
func removeSocket(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is not a socket: name another path, or move the file away", path)
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return fmt.Errorf("%s is in use by another process: stop the process, or name another path", path)
	}
	return os.Remove(path)
}

// groupID returns the id of a group, by name or number. "" is -1: no change.
func groupID(name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		g, err = user.LookupGroupId(name)
	}
	if err != nil {
		return 0, fmt.Errorf("http_socket_group %q: no such group", name)
	}
	return strconv.Atoi(g.Gid)
}
