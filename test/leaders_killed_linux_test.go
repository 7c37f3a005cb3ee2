// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// TestLeadersKilled_SameFinalState kills the leaders of the primary and of a
// secondary at the same moment, four times during 1000 writes and deletions of
// documents. A document with 600 owned ones is deleted directly before the first
// kill, so that the next leader continues their deletion. In the end, all servers
// of all datacenters have the same documents, and none of the owned ones.
func TestLeadersKilled_SameFinalState(t *testing.T) {
	onlyChaos(t)
	l := lab.New(t)
	dc1, dc2, dc3 := l.Add(3, 1), l.Add(3, 1), l.Add(1, 1)
	for _, dc := range []*lab.Datacenter{dc1, dc2, dc3} {
		dc.Start()
	}
	awaitWhole(t, l, 30*time.Second, "start")
	f := &documentWriters{t: t, l: l}
	servers := map[string]pb.ResourceServiceClient{}
	for _, dc := range l.Datacenters() {
		for _, s := range dc.Servers {
			servers[dc.Name+"/"+s.Name] = f.operator(s)
			if dc == dc1 {
				f.primary = append(f.primary, servers[dc.Name+"/"+s.Name])
			}
		}
	}
	f.ownedDocuments(600)

	const n, kills = 1000, 4
	var killed sync.WaitGroup
	for i := range n {
		if i%(n/kills) == n/kills/2 {
			if i == n/kills/2 {
				if _, err := f.primary[0].Delete(t.Context(), &pb.DeleteRequest{Id: resource.ID(document.Type, "owner")}); err != nil {
					t.Fatal(err)
				}
			}
			killed.Wait()
			for _, leader := range []*lab.Node{leaderOf(t, dc1), leaderOf(t, dc2)} {
				leader.Kill()
				killed.Go(func() {
					time.Sleep(3 * time.Second) // the tested time without this server
					leader.StartServer()
				})
			}
		}
		name := fmt.Sprint("k", i%40)
		if i%5 == 4 { // a deletion that fails without effect is as good for this test
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, _ = f.primary[i%3].Delete(ctx, &pb.DeleteRequest{Id: resource.ID(document.Type, name)})
			cancel()
		} else if _, err := f.write(f.primary[i%3], f.doc(name, i)); err != nil {
			t.Fatalf("write of %s = %v, want nil", name, err)
		}
	}
	killed.Wait()

	took := testutil.Await(t, 40*time.Second, "the same documents at all servers", func(ctx context.Context) error {
		var want map[string]string
		for _, name := range slices.Sorted(maps.Keys(servers)) {
			got, err := documentsAt(ctx, servers[name])
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			case want == nil:
				want = got
			}
			for doc := range got {
				if doc[0] == 'o' {
					return fmt.Errorf("%s has %s, which was deleted with its owner", name, doc)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%s has %d documents that differ from the %d of the primary", name, len(got), len(want))
			}
		}
		return nil
	})
	t.Logf("%d changes, %d kills: all servers have the same documents after %v", n, kills, ms(took))
}

// ownedDocuments creates the document "owner" and n documents that it owns.
func (f *documentWriters) ownedDocuments(n int) {
	f.t.Helper()
	owner, err := f.write(f.primary[0], f.doc("owner", 0))
	if err != nil {
		f.t.Fatal(err)
	}
	var all sync.WaitGroup
	const clients = 16
	for c := range clients {
		all.Go(func() {
			for i := c; i < n; i += clients {
				r := f.doc(fmt.Sprint("owned", i), i)
				r.Owner = owner.Id
				if _, err := f.write(f.primary[c%3], r); err != nil {
					f.t.Errorf("write of %s = %v, want nil", r.Id.Name, err)
				}
			}
		})
	}
	all.Wait()
}

// documentsAt returns uid and generation of each document of a server.
func documentsAt(ctx context.Context, at pb.ResourceServiceClient) (map[string]string, error) {
	resp, err := at.List(ctx, &pb.ListRequest{Type: document.Type})
	out := map[string]string{}
	for _, r := range resp.GetResources() {
		out[r.Id.Name] = r.Id.Uid + " " + r.Generation
	}
	return out, err
}
