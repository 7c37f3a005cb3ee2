// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
