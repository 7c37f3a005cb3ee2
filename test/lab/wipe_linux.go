// SPDX-License-Identifier: MPL-2.0

package lab

import "os"

// Wipe removes the files of a node whose process does not run, as if its
// machine had been lost.
func (n *Node) Wipe() {
	n.dc.lab.t.Helper()
	if n.Running() {
		n.dc.lab.t.Fatalf("Wipe of %s/%s while it runs, want it stopped", n.dc.Name, n.Name)
	}
	if err := os.RemoveAll(n.directory()); err != nil {
		n.dc.lab.t.Fatal(err)
	}
}
