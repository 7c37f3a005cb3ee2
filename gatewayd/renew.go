// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/tlsutil"
)

// renewCertificate returns the function that renews the certificate of a gateway over the
// connection to its servers.
func renewCertificate(id *tlsutil.Identity, logger *slog.Logger) func(context.Context, grpc.ClientConnInterface) {
	return func(ctx context.Context, servers grpc.ClientConnInterface) {
		connect := func() (grpc.ClientConnInterface, error) { return servers, nil }
		_ = enroll.Renewer{Identity: id, Connect: connect, Logger: logger}.Run(ctx) // returns nil
	}
}
