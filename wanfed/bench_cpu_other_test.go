// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package wanfed_test

import "time"

// cpuTime is not available on this system.
func cpuTime() time.Duration { return 0 }
