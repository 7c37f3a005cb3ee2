// SPDX-License-Identifier: MPL-2.0

package status

import (
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gateway/xds"
)

func TestEnvoyComponents(t *testing.T) {
	const listeners = "type.googleapis.com/envoy.config.listener.v3.Listener"
	got := envoyComponents([]xds.Proxy{
		{Gateway: "gw1", Version: "1.40.0", Types: []xds.Type{{TypeURL: listeners, Accepted: 1}}},
		{Gateway: "gw2", Version: "1.40.0", Types: []xds.Type{
			{TypeURL: listeners, Rejected: "cannot bind", RejectedAt: time.Now().Add(-3 * time.Second)}}},
	})
	if len(got) != 2 {
		t.Fatalf("envoyComponents() = %v, want 2", got)
	}
	if c := got[0]; c.Name != "envoy gw1" || c.State != "ok" || c.Detail != "version 1.40.0" {
		t.Errorf("accepted configuration = %+v, want ok with version", c)
	}
	const want = "Listener rejected 3s ago, the last accepted configuration is in use: cannot bind"
	if c := got[1]; c.State != "rejected" || !strings.HasPrefix(c.Detail, want) {
		t.Errorf("rejected configuration = %+v, want state rejected and detail %q", c, want)
	}
}
