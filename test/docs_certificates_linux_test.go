// SPDX-License-Identifier: MPL-2.0

package test

import "testing"

// TestDocs_Certificates executes docs/certificates.md: the rotation of a
// certificate and of the CA, and the revocation of a stolen key.
func TestDocs_Certificates(t *testing.T) {
	t.Parallel()
	r, _ := newMachine(t, "10.0.0.5")
	r.read("../docs/certificates.md")
	if r.commands != 38 || r.untested != 0 {
		t.Errorf("executed %d commands, skipped %d, want 38 and none", r.commands, r.untested)
	}
}
