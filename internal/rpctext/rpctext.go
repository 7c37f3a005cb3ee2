// SPDX-License-Identifier: MPL-2.0

package rpctext

import "strings"

// Plain returns text without the additions of gRPC.
func Plain(text string) string {
	head := ""
	for {
		before, call, found := strings.Cut(text, "rpc error: code = ")
		_, desc, hasDesc := strings.Cut(call, " desc = ")
		if !found || !hasDesc {
			break
		}
		head, text = head+before, desc
	}
	for _, added := range []string{"Error while dialing: ", `connection error: desc = "`} {
		if _, cause, ok := strings.Cut(text, added); ok {
			cause = strings.TrimPrefix(cause, "transport: ")
			return head + strings.ReplaceAll(strings.TrimSuffix(cause, `"`), `\"`, `"`)
		}
	}
	return head + text
}
