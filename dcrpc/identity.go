// SPDX-License-Identifier: MPL-2.0

package dcrpc

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/wanfed/wanfed/tlsutil"
)

// OnBehalfKey is the metadata key under which a server that forwards a call names
// the caller, as role/dc/node. See docs/how-it-works.md for who is trusted with it.
const OnBehalfKey = "wanfed-on-behalf"

// OnBehalf returns a context for calls that this server makes for caller.
func OnBehalf(ctx context.Context, caller tlsutil.Peer) context.Context {
	return metadata.AppendToOutgoingContext(ctx, OnBehalfKey, caller.String())
}
