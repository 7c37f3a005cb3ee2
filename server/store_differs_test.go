// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/raftstore/raftlog"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// TestStoreDiffers changes the store of one server of three. The servers detect
// this at the next checkpoint and name the server. The server then has the
// store of the others, without an operator. As the leader, it first transfers
// leadership.
func TestStoreDiffers(t *testing.T) {
	testutil.Cluster(t)
	for name, leads := range map[string]bool{"follower": false, "leader": true} {
		t.Run(name, func(t *testing.T) {
			ca := tlstest.NewCA(t)
			dir := t.TempDir()
			log, err := os.Create(filepath.Join(dir, "log"))
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			configs, parts, addrs := make([]Config, 3), make([]*part, 3), make([]Addrs, 3)
			for i := range configs {
				node := fmt.Sprintf("srv%d", i+1)
				f := ca.Files(t, tlsutil.RoleServer, node, "dc1")
				configs[i] = Config{
					DC: "dc1", Node: node, DataDir: filepath.Join(dir, node),
					CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key,
					BootstrapExpect: 3, RetryJoin: []string{"127.0.0.1:1"}, heartbeat: longHeartbeat,
					checkpointInterval: time.Hour, Logger: slog.New(slog.NewTextHandler(log, nil)),
				}
				if i > 0 {
					configs[i].RetryJoin = []string{addrs[0].Server}
				}
				parts[i], addrs[i] = startServer(t, configs[i])
				defer func() { parts[i].end(t) }()
			}
			write := func(key, value string) {
				data, err := anypb.New(&pb.KVEntry{Value: []byte(value)})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
				defer cancel()
				cc := connectAs(t, ca, addrs[0].Server, tlsutil.RoleOperator, "op", "dc1")
				_, err = pb.NewResourceServiceClient(cc).
					Write(ctx, &pb.WriteRequest{Resource: &pb.Resource{Id: resource.ID(kv.EntryType, key), Data: data}})
				if err != nil {
					t.Fatal(err)
				}
			}
			write("changed", "right value")
			write("other", "1")
			get := func(path string) string {
				resp, err := http.Get(addrs[2].HTTP + path)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
			awaitValue := func(want string) {
				testutil.Eventually(t, startTimeout, func() bool { return get("/v1/kv/changed?raw&stale") == want },
					"%s at srv3", want)
			}
			awaitValue("right value")

			parts[2].end(t)
			changeLog(t, filepath.Join(configs[2].DataDir, "raft"), "right value", "wrong value")
			configs[2].checkpointInterval = time.Second
			parts[2], addrs[2] = startServer(t, configs[2])
			awaitValue("wrong value")
			transfer := func(to string) {
				testutil.Eventually(t, startTimeout, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
					defer cancel()
					cc := connectAs(t, ca, addrs[0].Server, tlsutil.RoleOperator, "op", "dc1")
					ops := pb.NewOperatorServiceClient(cc)
					resp, err := ops.TransferLeader(ctx, &pb.TransferLeaderRequest{Node: to})
					return err == nil && resp.Leader == to
				}, "leader %s", to)
			}
			if leads {
				transfer("srv3")
			} else {
				for i := range 2 { // restart with short intervals, one after the other
					parts[i].end(t)
					configs[i].checkpointInterval = time.Second
					configs[i].RetryJoin = []string{addrs[2].Server}
					parts[i], addrs[i] = startServer(t, configs[i])
				}
				transfer("srv1")
			}
			awaitValue("right value")
			for _, want := range []string{`msg="stores differ: `, "nodes=[srv3]", `msg="store resynchronized: `} {
				testutil.Eventually(t, startTimeout, func() bool {
					b, err := os.ReadFile(log.Name())
					if err != nil {
						t.Fatal(err)
					}
					return strings.Contains(string(b), want)
				}, "log with %s", want)
			}
			transfer("srv3") // has the short interval in both tests
			testutil.Eventually(t, startTimeout, func() bool {
				return strings.Contains(get("/v1/agent/federation-status"), "3 servers have equal stores") &&
					!strings.Contains(get("/metrics"), "wanfed_store_differs{")
			}, "equal stores in the status and no metric")
		})
	}
}

// changeLog replaces old with replacement in the log of a stopped server, with
// correct checksums.
func changeLog(t *testing.T, dir, old, replacement string) {
	t.Helper()
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(dir, 2, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	l, err := raftlog.Open(raftlog.Config{
		Dir: filepath.Join(dir, "wal"), SegmentSize: 64 << 20, Snapshots: snapshots,
		SnapshotDir: filepath.Join(dir, "snapshots"), Logger: quiet, Fail: func(error) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	last, err := l.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var after []*raft.Log
	for i := uint64(1); i <= last; i++ {
		e := new(raft.Log)
		if err := l.GetLog(i, e); err != nil {
			t.Fatal(err)
		}
		if len(after) > 0 || bytes.Contains(e.Data, []byte(old)) {
			e.Data = bytes.ReplaceAll(e.Data, []byte(old), []byte(replacement))
			after = append(after, e)
		}
	}
	if len(after) == 0 {
		t.Fatalf("no log entry contains %q", old)
	}
	if err := l.DeleteRange(after[0].Index, last); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLogs(after); err != nil {
		t.Fatal(err)
	}
}
