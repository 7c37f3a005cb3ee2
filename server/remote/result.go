// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
)

// Results of requests to another datacenter, as metrics name them.
const (
	resultOK          = "ok"
	resultRefused     = "refused"     // the request is wrong, or not allowed
	resultFailed      = "failed"      // the other datacenter could not serve it
	resultUnreachable = "unreachable" // it did not respond
	resultTimeout     = "timeout"
	resultCancelled   = "cancelled" // by the client
)

// blocks reports whether a request of the HTTP API may wait for a change.
func blocks(req *pb.QueryRequest) bool { return strings.Contains(req.GetRawQuery(), "index=") }

// httpResult returns the result of a request of the HTTP API.
func httpResult(ctx context.Context, resp *pb.QueryResponse, err error) string {
	switch {
	case err != nil:
		return callResult(ctx, err)
	case resp.GetStatus() >= http.StatusInternalServerError:
		return resultFailed
	case resp.GetStatus() >= http.StatusBadRequest:
		return resultRefused
	}
	return resultOK
}

// callResult returns the result of a call.
func callResult(ctx context.Context, err error) string {
	if err == nil {
		return resultOK
	}
	if ctx.Err() == context.Canceled {
		return resultCancelled
	}
	switch status.Code(status.FromContextError(err).Err()) {
	case codes.DeadlineExceeded:
		return resultTimeout
	case codes.Unavailable, codes.Canceled: // Canceled: the connection was closed
		return resultUnreachable
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.ResourceExhausted:
		return resultFailed
	}
	return resultRefused
}
