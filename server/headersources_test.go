// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/internal/testutil"
)

// gatewayAt returns a gateway with a LAN address.
func gatewayAt(host string) *pb.MeshGateway {
	lan := map[string]*pb.Address{catalog.TagLAN: {Address: host, Port: 8444}}
	return &pb.MeshGateway{Node: &pb.Node{Node: "gw"}, Service: &pb.Service{TaggedAddresses: lan}}
}

func TestHeaderSources(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		h := newHeaderSources()
		check := func(addr string, want bool) {
			t.Helper()
			if got := h.contain(t.Context(), netip.MustParseAddr(addr)); got != want {
				t.Errorf("contain(%s) = %v, want %v", addr, got, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if h.contain(ctx, netip.MustParseAddr("10.0.0.1")) || ctx.Err() == nil {
			t.Error("contain() before update = true or at once, want false after the deadline")
		}
		go func() {
			time.Sleep(time.Second)
			h.update([]*pb.MeshGateway{gatewayAt("10.0.0.1"), gatewayAt("2001:db8::1"), gatewayAt("gw.example")})
		}()
		check("10.0.0.1", true) // waits for update
		check("::ffff:10.0.0.1", true)
		check("2001:db8::1", true)
		check("10.0.0.2", false)

		h.update([]*pb.MeshGateway{gatewayAt("2001:db8::1")})
		time.Sleep(headerGrace - time.Millisecond)
		check("10.0.0.1", true)
		h.update([]*pb.MeshGateway{gatewayAt("2001:db8::1")}) // does not extend the time
		time.Sleep(time.Millisecond)
		check("10.0.0.1", false)
		check("2001:db8::1", true)
		h.update(nil)
		h.update([]*pb.MeshGateway{gatewayAt("2001:db8::1")}) // returned
		time.Sleep(2 * headerGrace)
		check("2001:db8::1", true)
	})
}
