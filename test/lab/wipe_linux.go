// SPDX-License-Identifier: MPL-2.0

package lab

import "os"

// Wipe removes all that a node whose process does not run has on its disk, as if its machine had been lost.
func (n *Node) Wipe() {
	n.dc.lab.t.Helper()
	if n.Running() {
		n.dc.lab.t.Fatalf("%s/%s runs", n.dc.Name, n.Name)
	}
	if err := os.RemoveAll(n.folder()); err != nil {
		n.dc.lab.t.Fatal(err)
	}
}
