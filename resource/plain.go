// SPDX-License-Identifier: MPL-2.0

package resource

import "strings"

// Plain leaves out what gRPC puts around the error of a call, and of a dial, for people.
func ErrorText(text string) string {
	head := ""
	if before, call, ok := strings.Cut(text, "rpc error: code = "); ok {
		if _, desc, ok := strings.Cut(call, " desc = "); ok {
			head, text = before, desc
		}
	}
	if _, dial, ok := strings.Cut(text, "Error while dialing: "); ok {
		text = strings.ReplaceAll(strings.TrimSuffix(dial, `"`), `\"`, `"`)
	}
	return head + text
}
