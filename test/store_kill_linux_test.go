// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// killedServer is a server that is killed many times, with everything that it
// has acknowledged.
type killedServer struct {
	*loopback
	files  tlsutil.Files
	server *subprocess.Server

	mu       sync.Mutex
	last     map[string]*pb.Resource // last acknowledged value by name; nil means deleted
	open     map[string]bool         // names whose last write or deletion was not acknowledged
	uids     map[string]string       // name by uid, of every uid ever seen
	versions map[uint64]string       // uid and data by version, of every version ever seen
	writes   int
}

const killWriters = 4

// TestKilledServer_LosesNothing kills a server with SIGKILL at random points,
// also during its start. No acknowledged write or deletion is lost, a torn end
// of the log is not read as a write, and no uid or version is used twice.
func TestKilledServer_LosesNothing(t *testing.T) {
	t.Parallel()
	rounds := 5
	if chaos() {
		rounds = 200
	}
	l := newLoopback(t)
	k := &killedServer{
		loopback: l, files: l.ca.Files(t, tlsutil.RoleServer, "srv1", "dc1"),
		last: map[string]*pb.Resource{}, open: map[string]bool{}, uids: map[string]string{},
		versions: map[uint64]string{},
	}
	t.Cleanup(func() {
		if k.server == nil {
			return
		}
		k.server.Kill()
		if t.Failed() {
			t.Logf("end of the server's log:\n%s", strings.Join(k.server.Tail(30), "\n"))
		}
	})
	torn := 0
	for round := range rounds {
		if rand.IntN(4) == 0 {
			k.killStarting()
		}
		k.start()
		k.check()
		if t.Failed() {
			t.Fatalf("failed after %d kills", round)
		}
		k.writeUntilKilled(time.Duration(rand.IntN(150)) * time.Millisecond)
		if rand.IntN(2) == 0 && k.tear() {
			torn++
		}
	}
	k.start()
	k.check()
	t.Logf("%d acknowledged writes and deletions survived %d kills and %d torn ends of the log", k.writes, rounds, torn)
	if k.writes < 10*rounds {
		t.Errorf("writes = %d in %d rounds, want at least %d", k.writes, rounds, 10*rounds)
	}
}

func (k *killedServer) config() subprocess.ServerConfig {
	return subprocess.ServerConfig{Program: []string{k.bin}, Dir: filepath.Join(k.dir, "srv1"), DC: "dc1", Node: "srv1",
		TLS: k.files, LogLevel: "warn"}
}

func (k *killedServer) start() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	var err error
	if k.server, err = subprocess.StartServer(ctx, k.config()); err != nil {
		k.t.Fatal(err)
	}
}

// killStarting kills a server during its start or right after it.
func (k *killedServer) killStarting() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(300))*time.Millisecond)
	defer cancel()
	if s, err := subprocess.StartServer(ctx, k.config()); err == nil {
		s.Kill()
	} else if ctx.Err() == nil {
		k.t.Fatal(err)
	}
}

func (k *killedServer) client(t testing.TB) pb.ResourceServiceClient {
	return pb.NewResourceServiceClient(k.call(t, k.server.Addr, "server.dc1.wanfed", tlsutil.RoleOperator, "op", "dc1"))
}

// writeUntilKilled runs writers that create, change and delete resources, each
// with its own names, and kills the server while they run.
func (k *killedServer) writeUntilKilled(after time.Duration) {
	c := k.client(k.t)
	var killing atomic.Bool
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	for w := range killWriters {
		wg.Go(func() {
			for {
				if err := k.write(ctx, c, fmt.Sprintf("w%d/%d", w, rand.IntN(20))); err != nil {
					if code := status.Code(err); !killing.Load() || code != codes.Unavailable &&
						code != codes.Canceled {
						k.t.Errorf("write: %v", err)
					}
					begin()
					return
				}
				begin()
			}
		})
	}
	<-begun
	time.Sleep(after) // the tested moment of the kill
	killing.Store(true)
	k.server.Kill()
	cancel() // clients would wait for another connection
	wg.Wait()
}

// write changes or deletes the resource with the name and records the outcome.
func (k *killedServer) write(ctx context.Context, c pb.ResourceServiceClient, name string) error {
	id := resource.ID(entryType, name)
	k.mu.Lock()
	k.open[name] = true
	deletes := k.last[name] != nil && rand.IntN(4) == 0
	k.mu.Unlock()
	if deletes {
		if _, err := c.Delete(ctx, &pb.DeleteRequest{Id: id}); err != nil {
			return err
		}
		k.acknowledge(name, nil)
		return nil
	}
	data, err := anypb.New(&pb.KVEntry{Value: []byte(strings.Repeat(strconv.Itoa(rand.Int()), 1+rand.IntN(200)))})
	if err != nil {
		return err
	}
	out, err := c.Write(ctx, &pb.WriteRequest{Resource: &pb.Resource{Id: id, Data: data}})
	if err != nil {
		return err
	}
	k.acknowledge(name, out.GetResource())
	return nil
}

func (k *killedServer) acknowledge(name string, r *pb.Resource) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	k.last[name], k.open[name] = r, false
	if r != nil {
		k.seenLocked(r)
	}
}

// seenLocked compares a resource with all earlier ones. The caller holds k.mu.
func (k *killedServer) seenLocked(r *pb.Resource) {
	if other, ok := k.uids[r.Id.Uid]; ok && other != r.Id.Name {
		k.t.Errorf("uid %s belongs to %s and to %s, want one name", r.Id.Uid, other, r.Id.Name)
	}
	k.uids[r.Id.Uid] = r.Id.Name
	version, err := strconv.ParseUint(r.Version, 10, 64)
	if err != nil {
		k.t.Error(err)
	}
	what := r.Id.Uid + " " + string(r.Data.GetValue())
	if other, ok := k.versions[version]; ok && other != what {
		k.t.Errorf("version %d belongs to %.60q and to %.60q, want one", version, other, what)
	}
	k.versions[version] = what
}

// check reads all resources and compares them with the acknowledged ones.
func (k *killedServer) check() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	c := k.client(k.t)
	var out *pb.ListResponse
	for {
		var err error
		if out, err = c.List(resource.WithConsistency(ctx, resource.Strong),
			&pb.ListRequest{Type: entryType}); err == nil {
			break
		}
		if ctx.Err() != nil {
			k.t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond) // no leader yet
	}
	stored := map[string]*pb.Resource{}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range out.GetResources() {
		stored[r.Id.Name] = r
		k.seenLocked(r)
	}
	for name, want := range k.last {
		got := stored[name]
		lost := (got == nil) != (want == nil) || got != nil &&
			(got.Version != want.Version || !bytes.Equal(got.Data.GetValue(), want.Data.GetValue()))
		if lost && !k.open[name] {
			k.t.Errorf("%s has version %s of uid %s, want the acknowledged version %s of uid %s", name,
				got.GetVersion(), got.GetId().GetUid(), want.GetVersion(), want.GetId().GetUid())
		}
	}
	for name := range k.open { // an unacknowledged write may or may not have been stored
		k.last[name] = stored[name]
	}
	clear(k.open)
	for name := range stored {
		if _, ok := k.last[name]; !ok {
			k.t.Errorf("%s exists, but was never written", name)
		}
	}
}

// tear writes what an interrupted write may leave after the last entry of the
// log. It reports whether it did.
func (k *killedServer) tear() bool {
	var newest string
	err := filepath.WalkDir(filepath.Join(k.dir, "srv1", "data"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".wal" && path > newest {
			newest = path
		}
		return err
	})
	if err != nil || newest == "" {
		k.t.Fatal(errors.Join(err, errors.New("no log to tear")))
	}
	b, err := os.ReadFile(newest)
	if err != nil {
		k.t.Fatal(err)
	}
	end := (len(bytes.TrimRight(b, "\x00")) + 7) &^ 7
	// A frame (its kind, three zeros, its length) with an entry: either
	// truncated, or complete but without the frame that commits it.
	size := 100 + rand.IntN(1000)
	if end < 2*size || end+2*size > len(b) {
		return false
	}
	piece := append(binary.LittleEndian.AppendUint32([]byte{1, 0, 0, 0}, uint32(size)), b[end-size:end]...)
	if rand.IntN(3) > 0 {
		piece = piece[:1+rand.IntN(len(piece))]
	}
	f, err := os.OpenFile(newest, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(piece, int64(end))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return true
}
