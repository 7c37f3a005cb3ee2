// SPDX-License-Identifier: MPL-2.0

package lab

import "path/filepath"

// DataDir returns the data directory of a server.
func (n *Node) DataDir() string { return filepath.Join(n.directory(), "data") }
