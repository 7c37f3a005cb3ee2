// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// rivalTime is the time for which two datacenters with one name run.
// WANFED_RIVAL_TIME changes it.
func rivalTime(t *testing.T) time.Duration {
	if text := os.Getenv("WANFED_RIVAL_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	return 15 * time.Second
}

// valueReader reads one value in dc2 through the primary, again and again.
type valueReader struct {
	reads  int
	failed []string
	done   chan struct{}
}

// readIn starts a reader that runs until ctx ends.
func readIn(ctx context.Context, primary *site, want string) *valueReader {
	r := &valueReader{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			got, err := get(primary.server.HTTP + "/v1/kv/name?raw&dc=dc2")
			r.reads++
			if err != nil || got != want {
				r.failed = append(r.failed, fmt.Sprintf("%s: %q, %v", time.Now().Format("15:04:05.000"), got, err))
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return r
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(b)))
	}
	return string(b), err
}

// component returns the state of a component, or "" if there is none.
func component(st api.Status, name string) api.ComponentStatus {
	i := slices.IndexFunc(st.Components, func(c api.ComponentStatus) bool { return c.Name == name })
	if i < 0 {
		return api.ComponentStatus{}
	}
	return st.Components[i]
}

// advice returns what s advises about dc.
func (s *site) advice(ctx context.Context, dc string) (string, error) {
	st, err := s.status(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == dc })
	if i < 0 {
		return "", fmt.Errorf("%s does not list %s", s.dc, dc)
	}
	return st.Datacenters[i].Advice, nil
}

// TestSameName starts a second datacenter with the name of the first: from a
// copied configuration, and from a clone of the data directory. The first stays
// reachable, the log of the primary does not grow, and the status of both names
// the address of the other.
func TestSameName(t *testing.T) {
	testutil.Cluster(t)
	for _, tt := range []struct {
		name   string
		cloned bool // the data directory was copied too
	}{
		{"copied configuration", false},
		{"cloned data directory", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLoopback(t)
			primary := l.start("dc1", "dc1")
			genuine := l.start("dc2", "dc1", primary.gateway.WAN)
			l.federated(primary, genuine)
			l.put(t, genuine, "name", "genuine")
			if tt.cloned {
				copyDir(t, filepath.Join(l.dir, "dc2-srv1", "data"), filepath.Join(l.dir, "copy-srv1", "data"))
			}
			before := appliedEntries(t, primary)
			ctx, cancel := context.WithCancel(t.Context())
			reads := readIn(ctx, primary, "genuine")

			second := l.startIn("copy", "dc2", "dc1", primary.gateway.WAN)
			wantAdvice(t, primary, "dc2", second.gateway.WAN)
			wantAdvice(t, genuine, "dc2", second.gateway.WAN)
			wantAdvice(t, second, "dc2", genuine.gateway.WAN)
			time.Sleep(rivalTime(t)) // the measured time
			cancel()
			<-reads.done

			if n := appliedEntries(t, primary) - before; n >= 50 {
				t.Errorf("the log of the primary grew by %d entries, want fewer than 50", n)
			}
			if len(reads.failed) > 0 {
				t.Errorf("%d of %d reads in dc2 failed: %v", len(reads.failed), reads.reads, reads.failed)
			}
			if reads.reads < 100 {
				t.Errorf("reads = %d, want at least 100", reads.reads)
			}
			for _, path := range l.paths(t, primary, "dc2") {
				if path == second.gateway.WAN {
					t.Errorf("paths of dc1 to dc2 contain %s, the gateway of the refused datacenter", path)
				}
			}
			st, err := second.status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c := component(st, "identity"); c.State != "refused" {
				t.Errorf("identity of the second datacenter = %+v, want it refused", c)
			}
			if !tt.cloned {
				l.replace(t, primary, st, genuine, second)
			}
		})
	}
}

// TestSameName_Servers starts another server with the name of a running server
// of its datacenter: with an empty data directory, and with a clone of the data
// directory. The new server is refused. The datacenter does not change, not
// even when the first server restarts.
func TestSameName_Servers(t *testing.T) {
	testutil.Cluster(t)
	for _, cloned := range []bool{false, true} {
		t.Run(fmt.Sprintf("cloned=%v", cloned), func(t *testing.T) {
			l := newLoopback(t)
			group := l.grow(t, 2)
			first, other := group.servers[0], group.servers[1]
			second := l.disked(t, "srv1", func(c *subprocess.ServerConfig) {
				c.Dir = filepath.Join(l.dir, "second")
				c.RetryJoin = []string{other.server.Addr}
			})
			if cloned {
				copyDir(t, first.data(), second.data())
			}
			second.start()
			awaitIdentity(t, second, "refused", first.server.Addr)
			awaitIdentity(t, first, "conflict", second.server.Addr)
			group.awaitWhole(t, waitLimit)
			wantMember(t, other, "srv1", first.server.Addr)

			first.stopClean()
			first.start()
			group.awaitWhole(t, waitLimit)
			wantMember(t, other, "srv1", first.server.Addr)
			awaitIdentity(t, second, "refused", first.server.Addr)
		})
	}
}

// awaitIdentity waits until the identity of d has a state and names an address.
func awaitIdentity(t *testing.T, d *diskServer, state, addr string) {
	t.Helper()
	testutil.Await(t, waitLimit, d.config.Node+" is "+state, func(ctx context.Context) error {
		st, err := (&site{dc: "dc1", server: d.server}).status(ctx)
		if c := component(st, "identity"); err == nil && (c.State != state || !strings.Contains(c.Detail, addr)) {
			err = fmt.Errorf("identity is %s: %s, want %s with %s", c.State, c.Detail, state, addr)
		}
		return err
	})
}

// wantMember checks the address of a member of the LAN pool of d.
func wantMember(t *testing.T, d *diskServer, name, addr string) {
	t.Helper()
	var members []api.Member
	body, err := get(d.server.HTTP + "/v1/agent/members")
	if err == nil {
		err = json.Unmarshal([]byte(body), &members)
	}
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(m api.Member) bool { return m.Name == name })
	if i < 0 || net.JoinHostPort(members[i].Addr, strconv.Itoa(int(members[i].Port))) != addr {
		t.Errorf("members of %s = %+v, want %s at %s", d.config.Node, members, name, addr)
	}
}

// replace makes the second datacenter the accepted one, and waits until the
// primary reads from it.
func (l *loopback) replace(t *testing.T, primary *site, st api.Status, genuine, second *site) {
	t.Helper()
	_, id, ok := strings.Cut(component(st, "identity").Detail, "--id ")
	if !ok {
		t.Fatalf("identity = %+v, want a command with the id", component(st, "identity"))
	}
	op := l.ca.Files(t, tlsutil.RoleOperator, "op", "dc1")
	out, err := exec.CommandContext(t.Context(), l.bin, "federation", "replace", "dc2", "--id", id, "--http-addr",
		primary.server.HTTP,
		"--ca-file", op.CA, "--cert-file", op.Cert, "--key-file", op.Key).CombinedOutput()
	if err != nil {
		t.Fatalf("federation replace = %v: %s", err, out)
	}
	l.put(t, second, "name", "rebuilt")
	wantAdvice(t, genuine, "dc2", second.gateway.WAN)
	testutil.Await(t, waitLimit, "reads from the new dc2", func(context.Context) error {
		got, err := get(primary.server.HTTP + "/v1/kv/name?raw&dc=dc2")
		if err == nil && got != "rebuilt" {
			err = fmt.Errorf("read %q", got)
		}
		return err
	})
}

func wantAdvice(t *testing.T, s *site, dc, want string) {
	t.Helper()
	took := testutil.Await(t, waitLimit, "advice about "+dc+" with "+want, func(ctx context.Context) error {
		got, err := s.advice(ctx, dc)
		if err == nil && !strings.Contains(got, want) {
			err = fmt.Errorf("advice is %q", got)
		}
		return err
	})
	t.Logf("%s at %s names %s after %v", s.dc, s.server.Addr, want, took.Round(time.Millisecond))
}

// paths returns the addresses of the paths of s to dc.
func (l *loopback) paths(t *testing.T, s *site, dc string) (addrs []string) {
	t.Helper()
	st, err := s.status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range st.Datacenters {
		for _, p := range d.Paths {
			if d.Name == dc {
				addrs = append(addrs, p.Address)
			}
		}
	}
	if len(addrs) == 0 {
		t.Errorf("%s has no path to %s", s.dc, dc)
	}
	return addrs
}

// put writes a value at s as an operator.
func (l *loopback) put(t *testing.T, s *site, key, value string) {
	t.Helper()
	d := &diskServer{loopback: l, server: s.server, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: l.client(t, tlsutil.RoleOperator, "op", s.dc, "server."+s.dc+".wanfed"),
	}}}
	testutil.Await(t, waitLimit, "a write of "+key, func(context.Context) error {
		if status, answer, _ := d.request(http.MethodPut, key, []byte(value)); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, answer)
		}
		return nil
	})
}

// appliedEntries returns the number of entries of the Raft log that s has
// applied since it started.
func appliedEntries(t *testing.T, s *site) int {
	t.Helper()
	n := int(metric(t, s.server.HTTP, "wanfed_raft_fsm_applyBatchNum_sum"))
	if n == 0 {
		t.Fatal("the metric of applied entries is missing")
	}
	return n
}

// copyDir copies a directory with its files.
func copyDir(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o700); err != nil {
		t.Fatal(err)
	}
}
