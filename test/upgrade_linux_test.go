// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// TestUpgrade starts a federation with the program that WANFED_OLD names and
// upgrades it to this version while operators write. It replaces one process at
// a time: first all but the last server of each datacenter, then back to the
// old program, then all. Both versions work together, every resource is kept,
// and no acknowledged write is lost.
func TestUpgrade(t *testing.T) {
	old := os.Getenv("WANFED_OLD")
	if old == "" {
		t.Skip("needs an older program: set WANFED_OLD to its path")
	}
	l := lab.New(t)
	now := l.Use(old)
	f := promotion{&documentWriters{t: t, l: l}, map[*lab.Node]pb.ResourceServiceClient{}}
	for range 2 {
		l.Add(3, 1)
	}
	program := old
	start := func(n *lab.Node) {
		if n.WAN == "" {
			n.StartServer(remoteWritesFlag(t, program), "*")
		} else {
			n.StartGateway()
		}
	}
	all := l.Datacenters()
	for _, dc := range all {
		for _, n := range dc.Nodes() {
			start(n)
		}
	}
	awaitWhole(t, l, failure, "start of "+old)
	for i := range 100 {
		f.mustWrite(all[0], f.doc(fmt.Sprint("d", i), i))
		f.mustWrite(all[1], entry(fmt.Sprint("k", i), i))
	}
	documents := f.records(all[0])

	for _, change := range []struct {
		to   string
		most bool // not the last server of a datacenter
	}{{now, true}, {old, true}, {now, false}} {
		l.Use(change.to)
		program = change.to
		stop, stopKeys := f.keepWriting(all...), f.keepPutting(all...)
		for _, dc := range all {
			for _, n := range dc.Nodes() {
				if change.most && n == dc.Servers[2] {
					continue
				}
				began := time.Now()
				n.Stop()
				start(n)
				awaitWhole(t, l, failure, n.WANName()+" runs "+change.to)
				t.Logf("%s changed to %s, federation recovered after %v", n.WANName(), change.to, ms(time.Since(began)))
			}
		}
		acked := stop()
		stopKeys()
		f.same("changed to "+change.to, all...)
		f.checkUpgraded(change.to, documents, acked)
	}
}

// checkUpgraded checks dc2 after all processes were changed to a program. It
// must have the documents and the keys from before the upgrade, and the acked
// generations of documents that were written during the change.
func (f promotion) checkUpgraded(program string, documents map[string]*pb.Resource, acked map[string]string) {
	f.t.Helper()
	dc := f.l.Datacenters()[1]
	got := f.records(dc)
	for name, generation := range acked {
		if r := got[name]; r == nil || r.Generation != generation {
			f.t.Errorf("changed to %s: document %s = %v, want the acknowledged generation %v", program, name, r,
				generation)
		}
	}
	for name, r := range documents {
		if got[name].GetId().GetUid() != r.Id.Uid || got[name].GetGeneration() != r.Generation {
			f.t.Errorf("changed to %s: document %s = %v, want %v", program, name, got[name], r)
		}
	}
	keys := f.keys(dc)
	for i := range 100 {
		if keys[fmt.Sprint("k", i)] == nil {
			f.t.Errorf("changed to %s: key k%d is missing", program, i)
		}
	}
	f.t.Logf("changed to %s: %d documents acknowledged during the change", program, len(acked))
}

// remoteWritesFlag returns the flag of a program for the datacenters that may
// forward writes. Older programs named it --remote-writes-from.
func remoteWritesFlag(t *testing.T, program string) string {
	t.Helper()
	help, err := exec.Command(program, "server", "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s server --help = %v: %s", program, err, help)
	}
	if strings.Contains(string(help), "--allow-remote-writes-from") {
		return "--allow-remote-writes-from"
	}
	return "--remote-writes-from"
}

// keepPutting writes keys over HTTP at all servers of the datacenters until
// stop is called: one key per server, whose last acknowledged value stop
// verifies, and one key that all servers of a datacenter share.
func (f promotion) keepPutting(dcs ...*lab.Datacenter) (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[*lab.Node]int{}
	for _, dc := range dcs {
		for _, s := range dc.Servers {
			c := f.httpClient(s)
			put := func(key string, n int) error {
				req, err := http.NewRequestWithContext(ctx, http.MethodPut, "https://127.0.0.1:8500/v1/kv/"+key,
					strings.NewReader(fmt.Sprint(n)))
				if err != nil {
					return err
				}
				_, err = doRequest(c, req)
				return err
			}
			wg.Go(func() {
				done, failed, lastErr := 0, 0, ""
				for n := 0; ctx.Err() == nil; n++ {
					for i, key := range []string{"of-" + s.Name, "of-all"} {
						err := put(key, n)
						switch {
						case err == nil && i == 0:
							mu.Lock()
							acked[s] = n
							mu.Unlock()
						case err != nil && ctx.Err() == nil:
							failed, lastErr = failed+1, err.Error()
						}
						done++
					}
					select {
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
					}
				}
				f.t.Logf("%s: %d puts, %d failed, last error %q", s.WANName(), done, failed, lastErr)
			})
		}
	}
	return func() {
		f.t.Helper()
		cancel()
		wg.Wait()
		for s, last := range acked {
			var e pb.KVEntry
			if err := f.keys(s.DC())["of-"+s.Name].GetData().UnmarshalTo(&e); err != nil {
				f.t.Errorf("key of %s: %v", s.WANName(), err)
			} else if n, err := strconv.Atoi(string(e.Value)); err != nil || n < last {
				f.t.Errorf("key of %s = %q, %v; want at least %d, which was acknowledged", s.WANName(),
					e.Value, err, last)
			}
		}
	}
}

func entry(key string, n int) *pb.Resource {
	data, err := anypb.New(&pb.KVEntry{Value: fmt.Append(nil, n)})
	if err != nil {
		panic(err)
	}
	return &pb.Resource{Id: &pb.ID{Type: kv.EntryType, Name: key}, Data: data}
}

// keys returns the keys of a datacenter by name.
func (f promotion) keys(dc *lab.Datacenter) map[string]*pb.Resource {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	got, err := f.at(dc.Servers[0]).List(resource.WithConsistency(ctx, resource.Strong),
		&pb.ListRequest{Type: kv.EntryType})
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[string]*pb.Resource{}
	for _, r := range got.GetResources() {
		out[r.Id.Name] = r
	}
	return out
}
