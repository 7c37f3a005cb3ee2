// SPDX-License-Identifier: MPL-2.0

package rpctext

import "strings"

// Plain removes from an error text what gRPC adds: "rpc error: code = C desc = "
// at any depth, and the words and quotes around the cause of a failed dial. For
// example, Plain returns "read: dial tcp 10.0.0.1:8300: connection refused" for
//
//	read: rpc error: code = Unavailable desc = connection error: desc =
//	"transport: Error while dialing: dial tcp 10.0.0.1:8300: connection refused"
func Plain(text string) string {
	head := ""
	for {
		before, rest, found := strings.Cut(text, "rpc error: code = ")
		_, desc, hasDesc := strings.Cut(rest, " desc = ")
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
