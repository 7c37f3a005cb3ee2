// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/gossip"
	mem "github.com/wanfed/wanfed/resource/memory"
	"github.com/wanfed/wanfed/wanfed"
)

// TestFileFollows: the file is not written for each of many changes, but has them all soon after, and at the end.
func TestFileFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, ready := mem.New(), make(chan struct{})
		defer store.Close()
		close(ready)
		cfg := AddressBookUpdaterConfig{
			DC: "dc0", PrimaryDC: "dc0", Domain: "wanfed", Backend: store, LAN: &gossip.Pool{}, WAN: &gossip.Pool{}, Ready: ready,
			File: filepath.Join(t.TempDir(), "addresses.json"), Book: &wanfed.SharedAddressBook{}, Logger: slog.New(slog.DiscardHandler),
		}
		a, err := NewAddressBookUpdater(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		const many = 40
		told := 0
		tell := func() {
			told++
			dc := fmt.Sprintf("dc%d", told)
			_, _, err := Upsert(ctx, store, &pb.FederationState{Datacenter: dc, MeshGateways: []*pb.MeshGateway{
				meshGateway(dc, "gw-a", "10.0.0.1", fmt.Sprintf("198.51.100.%d", told), catalog.StatusPassing),
			}})
			if err != nil {
				t.Fatal(err)
			}
		}
		onDisk := func() int {
			r, err := loadRemembered(cfg.File)
			if err != nil {
				t.Fatal(err)
			}
			return len(r)
		}
		for range many {
			tell()
			time.Sleep(pauseOf(many))
		}
		if n := len(cfg.Book.Load().Paths); n < many-1 {
			t.Errorf("%d of %d datacenters are in the book", n, many)
		}
		if n := onDisk(); n == many {
			t.Error("the file is written for every change")
		}
		time.Sleep(saveEvery(many) + pauseOf(many))
		synctest.Wait()
		if n := onDisk(); n != many {
			t.Errorf("the file has %d of %d datacenters", n, many)
		}
		tell()
		time.Sleep(pauseOf(many) + time.Millisecond)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := onDisk(); n != many+1 {
			t.Errorf("at the end the file has %d of %d datacenters", n, many+1)
		}
	})
}
