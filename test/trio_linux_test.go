// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// trio is a datacenter of three server processes on loopback addresses.
type trio struct {
	*loopback
	servers  [3]*subprocess.Server
	operator tlsutil.Files
}

// newTrio starts a trio. args are further flags of each server, by its node.
func newTrio(t testing.TB, args ...func(node string) []string) *trio {
	t.Helper()
	g := &trio{loopback: newLoopback(t)}
	g.log = "info"
	g.operator = g.ca.Files(t, tlsutil.RoleOperator, "joe", "dc1")
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	ports := [3]int{unusedPort(t), unusedPort(t), unusedPort(t)}
	for i := range g.servers {
		node := fmt.Sprintf("srv%d", i+1)
		var join []string
		for _, port := range ports {
			join = append(join, fmt.Sprintf("127.0.0.1:%d", port))
		}
		var flags []string
		for _, f := range args {
			flags = append(flags, f(node)...)
		}
		var err error
		g.servers[i], err = subprocess.StartServer(ctx, subprocess.ServerConfig{
			Args:    flags,
			Program: []string{g.bin}, Dir: filepath.Join(g.dir, node), DC: "dc1", Node: node,
			TLS: g.ca.Files(t, tlsutil.RoleServer, node, "dc1"), BootstrapExpect: 3, RetryJoin: join, LogLevel: g.log,
			Port: ports[i],
		})
		if err != nil {
			t.Fatal(err)
		}
		g.keep(g.servers[i].Process)
	}
	g.leader()
	return g
}

// leader waits for a leader and returns its position.
func (g *trio) leader() (leader int) {
	g.t.Helper()
	testutil.Await(g.t, waitLimit, "leader", func(context.Context) error {
		for _, s := range g.servers {
			if s.Err() != nil || isDone(s.Process) {
				continue
			}
			addr, err := g.client(s).Status().Leader()
			if err != nil {
				return err
			}
			for i, other := range g.servers {
				if other.Addr == addr && !isDone(other.Process) {
					leader = i
					return nil
				}
			}
		}
		return errors.New("no leader")
	})
	return leader
}

func isDone(p *subprocess.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// client returns a client of Consul with the certificate of an operator.
func (g *trio) client(s *subprocess.Server) *consul.Client {
	g.t.Helper()
	c, err := consul.NewClient(g.clientConfig(s))
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func (g *trio) clientConfig(s *subprocess.Server) *consul.Config {
	cfg := consul.DefaultNonPooledConfig()
	cfg.Address, cfg.Scheme = strings.TrimPrefix(s.HTTP, "http://"), "https"
	cfg.TLSConfig = consul.TLSConfig{CAFile: g.operator.CA, CertFile: g.operator.Cert, KeyFile: g.operator.Key}
	return cfg
}

// mortal is a client whose requests fail after the client was killed, so that
// the servers receive nothing more from it.
type mortal struct {
	*consul.Client
	killed atomic.Bool
}

func (g *trio) mortal(s *subprocess.Server) *mortal {
	g.t.Helper()
	cfg := g.clientConfig(s)
	inner, err := consul.NewHttpClient(cfg.Transport, cfg.TLSConfig)
	if err != nil {
		g.t.Fatal(err)
	}
	m := &mortal{}
	transport := inner.Transport
	cfg.HttpClient = &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if m.killed.Load() {
			return nil, errors.New("killed")
		}
		return transport.RoundTrip(r)
	})}
	if m.Client, err = consul.NewClient(cfg); err != nil {
		g.t.Fatal(err)
	}
	return m
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// command returns a command in its own process group, with the settings of the
// clients of wanfed and of Consul for server s.
func (g *trio) command(s *subprocess.Server, name string, args ...string) *exec.Cmd {
	addr := strings.TrimPrefix(s.HTTP, "http://")
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Dir = g.dir
	cmd.Env = append(os.Environ(), "WANFED_HTTP_ADDR=https://"+addr, "WANFED_CA_FILE="+g.operator.CA,
		"WANFED_CERT_FILE="+g.operator.Cert, "WANFED_KEY_FILE="+g.operator.Key,
		"CONSUL_HTTP_ADDR="+addr, "CONSUL_HTTP_SSL=true", "CONSUL_CACERT="+g.operator.CA,
		"CONSUL_CLIENT_CERT="+g.operator.Cert, "CONSUL_CLIENT_KEY="+g.operator.Key, "CHECKPOINT_DISABLE=1",
		"TF_IN_AUTOMATION=1")
	return cmd
}

// held is a process that holds a lock.
type held struct {
	*exec.Cmd
	out  bytes.Buffer
	done chan error
}

// hold starts a command and waits until it has created the file.
func (g *trio) hold(cmd *exec.Cmd, file string) *held {
	g.t.Helper()
	h := &held{Cmd: cmd, done: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = &h.out, &h.out
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() { h.done <- cmd.Wait() }()
	g.t.Cleanup(func() { h.kill() })
	testutil.Await(g.t, waitLimit, file, func(context.Context) error {
		if len(h.done) > 0 {
			return fmt.Errorf("%v has ended: %s", cmd.Args, &h.out)
		}
		_, err := os.Stat(filepath.Join(g.dir, file))
		return err
	})
	return h
}

// kill kills the process and its children.
func (h *held) kill() { _ = syscall.Kill(-h.Process.Pid, syscall.SIGKILL) }
