// SPDX-License-Identifier: MPL-2.0

package test

import (
	"os"
	"testing"

	"github.com/wanfed/wanfed/test/lab"
)

func TestMain(m *testing.M) {
	code := m.Run()
	lab.RemoveBinary()
	os.Exit(code)
}
