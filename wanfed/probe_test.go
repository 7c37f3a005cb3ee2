// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// Probe exchanges small and large echoes over a path that the address book does
// not list, and needs no server certificate.
func TestDialer_Probe(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"})
	n, far := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	gw := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	dialer := func(id *tlsutil.Identity) *Dialer {
		d, err := NewDialer(DialerConfig{Identity: id, AddressBook: &SharedAddressBook{}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d, path := dialer(n.id), Path{Addr: gw.addr}
	for _, size := range []int{0, MaxProbe, 100 * MaxProbe} {
		if rtt, err := d.Probe(ctx, "dc2", path, size); err != nil || rtt <= 0 {
			t.Errorf("Probe(%d bytes) = %v, %v, want nil", size, rtt, err)
		}
	}
	if _, err := d.Probe(ctx, "dc1", Path{Addr: n.addr}, 0); err != nil {
		t.Errorf("Probe of the local datacenter = %v, want nil", err)
	}
	if _, err := d.Probe(ctx, "dc9", path, 0); ClassOf(err) == "" || err == nil {
		t.Errorf("Probe of another datacenter = %v, want an error", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if _, err := d.Probe(ended, "dc2", path, 0); err == nil {
		t.Error("Probe with an ended context = nil, want an error")
	}
}
