// SPDX-License-Identifier: MPL-2.0

package status

import (
	"fmt"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/tlsutil"
)

// certificateComponent describes the certificate of this server.
func certificateComponent(id *tlsutil.Identity, now time.Time) api.ComponentStatus {
	leaf, renewal := id.Leaf(), id.Renewal()
	c := api.ComponentStatus{Name: "certificate", State: "ok",
		Detail: "valid until " + id.Expiry().UTC().Format(time.RFC3339)}
	switch {
	case now.After(id.Expiry()):
		c.State = "expired"
	case renewal.Err != nil:
		c.State = "cannot be renewed"
		c.Detail = fmt.Sprintf("%v; %s", renewal.Err, c.Detail)
	case tlsutil.Enrolled(leaf):
		c.Detail += ", renewed at " + tlsutil.RenewAt(leaf).UTC().Format(time.RFC3339)
	default:
		c.Detail += ", does not renew itself"
	}
	return c
}
