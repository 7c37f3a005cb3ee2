// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

func TestCountFields(t *testing.T) {
	ev, err := proto.Marshal(&pb.WatchEvent{Event: &pb.WatchEvent_EndOfSnapshot_{EndOfSnapshot: &pb.WatchEvent_EndOfSnapshot{}}})
	if err != nil {
		t.Fatal(err)
	}
	if n, end := countFields(ev, 1, 3); n != 0 || !end {
		t.Errorf("end of snapshot: %d upserts, end %t", n, end)
	}
	two := bytesField(bytesField(varintField(nil, 7, 1<<40), 11, []byte("a")), 11, nil)
	if n, seven := countFields(two, 11, 7); n != 2 || !seven {
		t.Errorf("%d of field 11, field 7 %t", n, seven)
	}
	countFields([]byte{0x0a, 0xff}, 1, 2) // cut off: no panic
}

func TestTable(t *testing.T) {
	tb := table{}
	for _, v := range []float64{300, 100, 150} {
		tb.add("write/256", "wanfed", map[string]float64{"per s": v})
		tb.add("write/256", "etcd", map[string]float64{"per s": 101})
	}
	var out bytes.Buffer
	tb.print(&out, allRows())
	if want := "| write/256 | per s | 150 | 101 | 1.49 | ≥ 1.5 not met |"; !strings.Contains(out.String(), want) {
		t.Errorf("%s\nhas no line %s", &out, want)
	}
}
