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
	if _, dial, ok := strings.Cut(text, "Error while dialing: "); ok {
		text = strings.ReplaceAll(strings.TrimSuffix(dial, `"`), `\"`, `"`)
	}
	return head + text
}
