// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestMain(m *testing.M) {
	runFloorIfRequested()
	os.Exit(m.Run())
}

func TestCountFields(t *testing.T) {
	ev, err := proto.Marshal(&pb.WatchEvent{
		Event: &pb.WatchEvent_EndOfSnapshot_{EndOfSnapshot: &pb.WatchEvent_EndOfSnapshot{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, end := countFields(ev, 1, 3); n != 0 || !end {
		t.Errorf("countFields(end of snapshot, 1, 3) = %d, %t, want 0, true", n, end)
	}
	message := bytesField(bytesField(varintField(nil, 7, 1<<40), 11, []byte("a")), 11, nil)
	if n, hasSeven := countFields(message, 11, 7); n != 2 || !hasSeven {
		t.Errorf("countFields(message, 11, 7) = %d, %t, want 2, true", n, hasSeven)
	}
	countFields([]byte{0x0a, 0xff}, 1, 2) // truncated field: must not panic
}

func TestTable_Print(t *testing.T) {
	tb := table{}
	for _, v := range []float64{300, 100, 150} {
		tb.add("write/256", "wanfed", map[string]float64{"per s": v})
		tb.add("write/256", "etcd", map[string]float64{"per s": 101})
		tb.add("fanout/1", "wanfed", map[string]float64{"p99 ms": v})
		tb.add("fanout/1", "etcd", map[string]float64{"p99 ms": 100})
		tb.add("fanout/1", "floor", map[string]float64{"p99 ms": 60})
	}
	var out bytes.Buffer
	tb.print(&out, allRows())
	for _, want := range []string{
		"| write/256 | per s | 150 | 101 | 1.49 | ≥ 1.5 not met |  |  |",
		"| fanout/1 | p99 ms | 150 | 100 | 1.50 | ≤ 0.5 not met | 60.00 | 0.60 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("print() =\n%s\nwant a line %s", &out, want)
		}
	}
}

func TestSettings_Selected(t *testing.T) {
	names := func(s settings) (all []string) {
		for _, r := range s.selected() {
			all = append(all, r.name)
		}
		return all
	}
	want := []string{"write/1", "write/16", "write/256", "fanout/1"}
	if got := names(settings{rows: "fanout/1,write"}); !slices.Equal(got, want) {
		t.Errorf("selected() = %q, want %q", got, want)
	}
	if got := names(settings{}); len(got) != len(allRows()) {
		t.Errorf("selected() without rows = %q, want all %d rows", got, len(allRows()))
	}
}

// TestFanout_Floor runs the row fanout/1 with the floor as the server.
func TestFanout_Floor(t *testing.T) {
	dir := t.TempDir()
	pki, err := subprocess.NewPKI(filepath.Join(dir, "pki"), domain)
	if err != nil {
		t.Fatal(err)
	}
	files, err := pki.Issue(tlsutil.RoleOperator, "dc1", "cli")
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientTLS(files)
	if err != nil {
		t.Fatal(err)
	}
	c, err := startFloor(t.Context(), dir, pki, client)
	if c != nil {
		defer c.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	figures, err := fanout(1)(t.Context(), c, settings{changes: 5})
	if err != nil || figures["p50 ms"] <= 0 {
		t.Fatalf("fanout(1)() = %v, %v, want a p50 > 0", figures, err)
	}
}
