// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/wanfed"
)

// What no way leads to is dialed after a moment, and is news when a way works again.
func TestLostDatacenters(t *testing.T) {
	book := &wanfed.SharedAddressBook{}
	c := newConns("dc1", "dc1", nil, nil, book)
	since, now := map[string]time.Time{}, time.Now()
	step := func(after time.Duration, gone ...string) []string {
		now = now.Add(after)
		dial, wait := c.lost(since, gone, now)
		if wait <= 0 {
			t.Errorf("wait %v", wait)
		}
		slices.Sort(dial)
		return dial
	}
	if got := step(0, "dc2"); len(got) != 0 || c.isLost("dc2") {
		t.Errorf("at once: %v", got)
	}
	if got := step(lostAfter/2, "dc2", "dc3"); len(got) != 0 {
		t.Errorf("soon: %v", got)
	}
	if got := step(lostAfter/2, "dc2", "dc3"); !slices.Equal(got, []string{"dc2"}) || !c.keeps("dc2") || c.keeps("dc3") {
		t.Errorf("later: %v", got)
	}
	news := c.newsOf("dc2")
	if got := step(time.Second, "dc3"); !slices.Equal(got, []string{"dc3"}) {
		t.Errorf("dc2 is back: %v", got)
	}
	<-news
	if now, _ := c.contacts(); now["dc2"].Unreachable || now["dc2"].Recoveries != 1 || !now["dc3"].Unreachable {
		t.Errorf("contacts: %+v", now)
	}
	// A dial that fails says the same, whatever ways are thought to work.
	_ = c.do(t.Context(), connKey{dc: "dc2"}, func(context.Context) error { return errDown })
	if !c.keeps("dc2") {
		t.Error("a datacenter whose dial failed is not dialed again")
	}
}

// A call over a connection that is being dialed learns that others gave that up, however long it has waited.
func TestGivenUpWhileDialed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, cc := &conns{}, &conn{}
		cc.life, cc.end = context.WithCancel(t.Context())
		var err error
		cc.ClientConn, err = api.NewGRPCClient(func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done() // into a black hole
			return nil, ctx.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
		cc.Connect()
		found := make(chan bool, 1)
		go func() { found <- c.testDead(t.Context(), cc) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(found) > 0 {
			t.Fatalf("testDead returned %v while the connection is dialed", <-found)
		}
		cc.end()
		if !<-found {
			t.Error("testDead says that a connection which was given up is not dead")
		}
		cc.Close()
	})
}
