// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestRun_RegistersFollowsAndDeregisters(t *testing.T) {
	r := newRig(t)
	srv := r.double(t, "srv1", sample)
	stop := r.start(t, srv.addr)
	register := "register 127.0.0.1:8444 gw1.example:8443 by gateway/dc1/gw1"
	for range 3 { // at once, then the heartbeat
		srv.wait(t, register)
	}
	wait(t, r.logs, `level=INFO msg="routes changed" servers=1 datacenters=1`)
	r.routed(t, sample)

	next := proto.CloneOf(sample)
	next.Servers = append(next.Servers, server("srv2", "10.0.0.2:8300"))
	next.Datacenters[0].Gateways = []string{"198.51.100.3:8443"}
	srv.publish(next)
	wait(t, r.logs, `level=INFO msg="routes changed" servers=2`)
	r.routed(t, next)
	st := r.Status()
	if st.Server != srv.addr || !st.HasSnapshot || st.FromDisk || st.SnapshotAt.IsZero() || st.Registered.IsZero() {
		t.Errorf("Status() = %+v, want server %s, a snapshot that is not from disk, and both times", st, srv.addr)
	}

	stop()
	srv.wait(t, "deregister by gateway/dc1/gw1")
	if snap, _, err := loadSnapshot(r.dir); err != nil || !proto.Equal(snap, next) {
		t.Errorf("loadSnapshot() = %v, %v; want %v", snap, err, next)
	}
}

func TestRun_FailsOver(t *testing.T) {
	testutil.Cluster(t)
	r := newRig(t)
	second := r.double(t, "srv2", sample)
	known := proto.CloneOf(sample) // names the second server; the gateway knows only the first
	known.Servers = []*pb.SnapshotServer{server("srv2", second.addr)}
	first := r.double(t, "srv1", known)
	r.start(t, first.addr)
	first.wait(t, "register")
	wait(t, r.logs, "level=INFO msg=\"routes changed\"")
	first.stop()
	began := time.Now()
	second.wait(t, "register")
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("registration with the second server took %v, want at most 5s", d)
	}
	wait(t, r.logs, "level=INFO msg=\"routes changed\"")
	r.routed(t, sample)
	if st := r.Status(); st.Server != second.addr {
		t.Errorf("Status().Server = %s, want %s", st.Server, second.addr)
	}
}

// The first server accepts connections and does not answer.
func TestRun_SkipsSilentServer(t *testing.T) {
	testutil.Cluster(t)
	r := newRig(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	srv := r.double(t, "srv1", sample)
	stalls := lab.WatchStalls(t)
	began := time.Now()
	r.start(t, silent.Addr().String(), srv.addr)
	srv.wait(t, "register")
	if d := stalls.Awake(began); d > serverTimeout {
		t.Errorf("registration took %v, want at most %v", d, serverTimeout)
	}
}

func TestRun_RestartsWithoutServers(t *testing.T) {
	r := newRig(t)
	srv := r.double(t, "srv1", sample)
	stop := r.start(t, srv.addr)
	wait(t, r.logs, "level=INFO msg=\"routes changed\"")
	stop()
	srv.stop()

	stop = r.start(t, srv.addr)
	r.routed(t, sample) // before anything else
	wait(t, r.logs, `level=WARN msg="cannot register" err="no server of dc1 answers: dial `)
	r.routed(t, sample)
	if st := r.Status(); !st.HasSnapshot || !st.FromDisk || time.Since(st.SnapshotAt) > waitLimit || st.Server != "" ||
		!strings.Contains(st.LastError, "refused") {
		t.Errorf("Status() = %+v, want a snapshot from disk with its age, no server and the error refused", st)
	}
	stop()
	wait(t, r.logs, `level=WARN msg="cannot deregister`)
}

// TestRun_DataDirDeleted checks that a gateway ends if its data directory was
// deleted and no server answers, as after the end of a demo.
func TestRun_DataDirDeleted(t *testing.T) {
	r := newRig(t)
	c, err := New(Config{
		Identity: r.id, Servers: []string{"127.0.0.1:1"}, LAN: "127.0.0.1:8444", WAN: "gw1.example:8443",
		DataDir: filepath.Join(r.dir, "data"), LANListener: gateway.NewListener("lan"),
		WANListener: gateway.NewListener("wan"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.dir, "data")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), "was deleted while the gateway ran") {
		t.Errorf("Run() = %v, want an error about the data directory", err)
	}
}

func TestNew_IgnoresInvalidSnapshotFile(t *testing.T) {
	other := proto.CloneOf(sample)
	other.Datacenter = "dc9"
	whole, err := encodeSnapshot(other)
	if err != nil {
		t.Fatal(err)
	}
	for want, content := range map[string][]byte{"is damaged": append(whole, 1), `of datacenter \"dc9\"`: whole} {
		r := newRig(t)
		if err := os.WriteFile(filepath.Join(r.dir, snapshotFile), content, 0o600); err != nil {
			t.Fatal(err)
		}
		srv := r.double(t, "srv1", sample)
		stop := r.start(t, srv.addr)
		line := <-r.logs
		if !strings.HasPrefix(line, `level=WARN msg="snapshot on disk ignored"`) || !strings.Contains(line, want) {
			t.Errorf("first log line = %s, want snapshot on disk ignored, with %s", line, want)
		}
		wait(t, r.logs, "level=INFO msg=\"routes changed\"")
		r.routed(t, sample)
		stop()
	}
}

func TestRun_RefusesSnapshots(t *testing.T) {
	r := newRig(t)
	srv := r.double(t, "srv1", sample)
	r.start(t, srv.addr)
	wait(t, r.logs, "level=INFO msg=\"routes changed\"")

	// A server that has just started sends a snapshot without itself.
	srv.publish(&pb.GatewaySnapshot{Datacenter: "dc1", Domain: "wanfed"})
	wait(t, r.logs, `level=DEBUG msg="snapshot of a server that has just started`)
	r.routed(t, sample)

	other := proto.CloneOf(sample)
	other.Domain = "other"
	srv.publish(other)
	wait(t, r.logs, `level=WARN msg="cannot follow snapshots" err="snapshot refused: it is of datacenter \"dc1\" and `+
		`domain \"other\"`)
	r.routed(t, sample)

	bad := proto.CloneOf(sample)
	bad.Datacenters = append(bad.Datacenters, datacenter("dc3", "nonsense"))
	srv.publish(bad)
	wait(t, r.logs, `level=WARN msg="part of the snapshot ignored" err="gateway of datacenter dc3: address `+
		`\"nonsense\" has no port`)
	r.routed(t, sample)
}

func TestRun_LogsReasonOfRefusal(t *testing.T) {
	r := newRig(t)
	srv := r.double(t, "srv1", sample)
	srv.refuse = status.Error(codes.InvalidArgument, "wan address is taken by gateway gw2")
	r.start(t, srv.addr)
	wait(t, r.logs, `level=WARN msg="cannot register" err="wan address is taken by gateway gw2"`)
	srv.mu.Lock()
	srv.refuse = nil
	srv.mu.Unlock()
	srv.wait(t, "register")
	wait(t, r.logs, `level=INFO msg=registered`)

	// A server of another datacenter listens on the configured address.
	second := newRig(t)
	wrong := newDouble(t, second.ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2"), sample)
	second.start(t, wrong.addr)
	wait(t, second.logs, `level=WARN msg="cannot register" err="no server of dc1 answers: dial `+wrong.addr+
		`: peer failed, or has no certificate for the requested name`)
}

// With a heartbeat interval of one hour, the gateway must still register with
// another server at once.
func TestRun_RegistersAfterReconnect(t *testing.T) {
	r := newRig(t)
	first, second := r.double(t, "srv1", sample), r.double(t, "srv2", sample)
	first.every, second.every = time.Hour, time.Hour
	r.start(t, first.addr, second.addr)
	first.wait(t, "register")
	wait(t, r.logs, `level=INFO msg="routes changed"`)
	first.stop()
	second.wait(t, "register")
}

// Each heartbeat confirms an unchanged snapshot, so its age is the time without a
// server.
func TestRun_HeartbeatConfirmsSnapshot(t *testing.T) {
	r := newRig(t)
	srv := r.double(t, "srv1", sample)
	r.start(t, srv.addr)
	srv.wait(t, "register")
	wait(t, r.logs, `level=INFO msg="routes changed"`)
	times := func() (out []time.Time) {
		for _, p := range r.Report().Parts {
			out = append(out, p.Updated)
		}
		return append(out, r.Status().SnapshotAt)
	}
	for range 2 {
		before := time.Now()
		testutil.Eventually(t, waitLimit, func() bool {
			return !slices.ContainsFunc(times(), func(at time.Time) bool { return at.Before(before) })
		}, "all parts confirmed after %v", before)
	}
	srv.stop()
	stopped := time.Now()
	waitLine(t, r.logs, `level=WARN msg="cannot register"`)
	if got := times(); slices.ContainsFunc(got, func(at time.Time) bool { return at.After(stopped) }) {
		t.Errorf("times of the parts without a server = %v, want none after %v", got, stopped)
	}
	if st := r.Status(); !st.HasSnapshot {
		t.Errorf("Status() without a server = %+v, want a snapshot", st)
	}
}

func TestFailed_LogsOncePerInterval(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		log, events := logEvents()
		c := &Client{cfg: Config{Logger: log}, warned: map[string]warning{}}
		level := func() string {
			line, _, _ := strings.Cut(<-events, " ")
			return line
		}
		fail := func(text, want string) {
			t.Helper()
			c.failed("cannot register", errors.New(text))
			if got := level(); got != want {
				t.Errorf("failed(%q) logged with %s, want %s", text, got, want)
			}
		}
		fail("a", "level=WARN")
		fail("a", "level=DEBUG")
		fail("b", "level=WARN")
		time.Sleep(59 * time.Second)
		fail("b", "level=DEBUG")
		time.Sleep(time.Second)
		fail("b", "level=WARN")
		c.worked("cannot register")
		fail("b", "level=WARN")
	})
}

func TestNew_Refuses(t *testing.T) {
	r := newRig(t)
	file := filepath.Join(r.dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listener := gateway.NewListener("lan")
	noServer := Config{
		Identity: r.id, DataDir: r.dir, LANListener: listener, WANListener: listener,
		Logger: slog.New(slog.DiscardHandler),
	}
	oneListener := noServer
	oneListener.WANListener = nil
	badDir := noServer
	badDir.Servers, badDir.DataDir = []string{"127.0.0.1:1"}, filepath.Join(file, "below")
	for want, cfg := range map[string]Config{"are required": {}, "at least one server": noServer, "data_dir": badDir,
		"or neither": oneListener} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want an error with %q", err, want)
		}
	}
}
