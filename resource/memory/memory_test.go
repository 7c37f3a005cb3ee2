// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	resourcetest.Run(t, func(t *testing.T) resource.Backend {
		s := New()
		t.Cleanup(func() { s.Close() })
		return s
	})
}
