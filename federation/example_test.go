// SPDX-License-Identifier: MPL-2.0

package federation_test

import (
	"fmt"

	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
)

// Reject a member that names another primary.
func ExampleAdmit() {
	admit := federation.Admit("dc2", "dc1", func(string) string { return "" }, func(node, dc, primary, epoch string) {
		fmt.Println("conflict:", node, dc, primary)
	})
	err := admit(gossip.Member{Name: "srv1.dc3", Tags: map[string]string{
		federation.TagDC: "dc3", federation.TagPrimary: "dc9",
	}})
	fmt.Println(err != nil)
	// Output:
	// conflict: srv1 dc3 dc9
	// true
}
