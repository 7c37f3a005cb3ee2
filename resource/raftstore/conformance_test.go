// SPDX-License-Identifier: MPL-2.0

package raftstore

import (
	"testing"

	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
)

func TestConformanceSingle(t *testing.T) {
	s := single(t)
	resourcetest.Run(t, func(*testing.T) resource.Backend { return s })
}

func TestConformanceGroup(t *testing.T) {
	all := group(t, loopback(t), nil)
	leader := awaitLeader(t, values(all)...)
	resourcetest.Run(t, func(*testing.T) resource.Backend { return leader })
}
