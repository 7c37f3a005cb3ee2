// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// tcpFrame returns an Ethernet frame with a TCP segment from 198.18.1.1 to
// 198.18.2.1.
func tcpFrame(from, to uint16, seq uint32, flags byte, payload []byte) []byte {
	b := make([]byte, 14+20+20, 14+20+20+len(payload))
	binary.BigEndian.PutUint16(b[12:], etherIPv4)
	ip := b[14:]
	ip[0], ip[9] = 0x45, protoTCP
	binary.BigEndian.PutUint16(ip[2:], uint16(40+len(payload)))
	copy(ip[12:], netip.MustParseAddr("198.18.1.1").AsSlice())
	copy(ip[16:], netip.MustParseAddr("198.18.2.1").AsSlice())
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, from)
	binary.BigEndian.PutUint16(tcp[2:], to)
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13] = 5<<4, flags
	return append(b, payload...)
}

// TestCapture_PortUsedAgain passes the frames of two connections with the same
// ports. The second one begins with another sequence number, which is not a gap
// of the first one. A SYN that is sent again begins no connection.
func TestCapture_PortUsedAgain(t *testing.T) {
	c := &Capture{flows: map[Flow][]*stream{}, other: map[string]int{}, fd: -1, cancel: func() {}}
	record := []byte{23, 3, 3, 0, 1, 0}
	for _, first := range []uint32{1000, 900_000} {
		c.frame(tcpFrame(40000, 8443, first, flagSYN, nil))
		c.frame(tcpFrame(40000, 8443, first+1, 0, record))
		c.frame(tcpFrame(40000, 8443, first, flagSYN, nil))
		c.frame(tcpFrame(40000, 8443, first+7, 0, slices.Concat(record, record)))
	}
	r := c.Check(t, 8443)
	if len(r.Flows) != 1 || r.Records != 6 || r.Bytes != 36 {
		t.Errorf("report = %+v, want 1 flow with 6 records and 36 bytes", r)
	}

	c.frame(tcpFrame(40000, 8443, 2000, flagSYN, nil))
	c.frame(tcpFrame(40000, 8443, 2001, 0, record))
	c.frame(tcpFrame(40000, 8443, 2009, 0, record))
	for _, ss := range c.flows {
		if _, _, err := tlsRecords(ss[len(ss)-1]); err == nil {
			t.Error("flow with 2 missing bytes has no gap, want an error")
		}
	}
}
