// SPDX-License-Identifier: MPL-2.0

package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gateway/xds"
)

// envoyComponents returns a component for each Envoy that receives its
// configuration from this server.
func envoyComponents(proxies []xds.Proxy) (out []api.ComponentStatus) {
	for _, p := range proxies {
		c := api.ComponentStatus{Name: "envoy " + p.Gateway, State: "ok", Detail: "version " + p.Version}
		for _, t := range p.Types {
			if t.Rejected == "" {
				continue
			}
			kind := t.TypeURL[strings.LastIndex(t.TypeURL, ".")+1:]
			c.State = "rejected"
			c.Detail = fmt.Sprintf("%s rejected %v ago, the last accepted configuration is in use: %s", kind,
				time.Since(t.RejectedAt).Truncate(time.Second), t.Rejected)
			break
		}
		out = append(out, c)
	}
	return out
}
