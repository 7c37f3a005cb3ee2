// SPDX-License-Identifier: MPL-2.0

package view

import "time"

// SetConsulWait sets the longest time that a query of an agent blocks. It must be
// called before Run.
func (v *Views) SetConsulWait(d time.Duration) { v.agent.wait = d }
