// SPDX-License-Identifier: MPL-2.0

package test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/wanfed/wanfed/test/lab"
)

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given { // labs wait most of the time, so two of them share one processor
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	}
	code := m.Run()
	lab.RemoveBinary()
	os.Exit(code)
}
