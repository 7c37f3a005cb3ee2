// SPDX-License-Identifier: MPL-2.0

package rpc

import (
	"log/slog"
	"maps"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// DeniedCall is what denied calls are counted by. The number of values is
// bounded: methods are those of Rules, or unknownMethod.
type DeniedCall struct {
	Method string
	Role   tlsutil.Role
}

// unknownMethod stands for methods without a rule: a peer could invent any
// number of them.
const unknownMethod = "unknown"

// denials counts and logs calls that were denied because of their caller.
type denials struct {
	log *ratelog.Logger[DeniedCall]

	mu    sync.Mutex
	total map[DeniedCall]uint64
}

func newDenials(logger *slog.Logger) *denials {
	return &denials{log: ratelog.New[DeniedCall](logger, 0), total: map[DeniedCall]uint64{}}
}

// note counts a call of p that ended with err, if err is a denial. A forwarded
// call is counted by the server that answers it.
func (d *denials) note(p tlsutil.Peer, method string, err error) {
	if status.Code(err) == codes.PermissionDenied {
		d.count(p, method, err)
	}
}

// count counts and logs a denied call.
func (d *denials) count(p tlsutil.Peer, method string, err error) {
	if _, known := rules[resource.CanonicalMethod(method)]; !known {
		method = unknownMethod
	}
	kind := DeniedCall{method, p.Role}
	d.mu.Lock()
	d.total[kind]++
	d.mu.Unlock()
	d.log.Log(kind, slog.LevelWarn, "call refused", "peer", p.String(), "method", method,
		"err", status.Convert(err).Message())
}

func (d *denials) counts() map[DeniedCall]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.total)
}
