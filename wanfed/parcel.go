// SPDX-License-Identifier: MPL-2.0

package wanfed

import "github.com/hashicorp/memberlist"

// parcel is a run of frames in a packetConn's buffer, for one pool, not delivered yet.
type parcel struct {
	pool       Pool
	begin, end int // in the buffer
	n          int
	packets    []struct{ begin, end int } // room for more than n is kept for the next
}

// A packet that memberlist keeps also keeps what came with it in one parcel: at most so many packets and bytes, unless it is
// alone.
const (
	parcelPackets = 128
	parcelBytes   = 16 << 10
)

// add takes the frame of size bytes at r, which ends with a packet, for delivery.
func (pc *packetConn) add(pool Pool, size, packet int) {
	end := pc.r + size
	p := &pc.parcel
	if p.n > 0 && (p.n == parcelPackets || p.pool != pool || p.end != pc.r || end-p.begin > parcelBytes) {
		pc.deliver()
	}
	if p.n == 0 {
		p.pool, p.begin = pool, pc.r
	}
	p.packets = append(p.packets[:p.n], struct{ begin, end int }{end - packet, end})
	p.n, p.end = p.n+1, end
}

// deliver gives memberlist the packets of the parcel and counts what became of them.
func (pc *packetConn) deliver() {
	p := &pc.parcel
	if p.n == 0 {
		return
	}
	n := p.n
	p.n = 0
	count, tr := pc.count(p.pool), pc.t.pool(p.pool)
	if tr == nil {
		count.drop(dropNoPool, n)
		return
	}
	b, packets := append([]byte(nil), pc.buf[p.begin:p.end]...), make([]memberlist.Packet, n)
	received := 0
	for i, at := range p.packets[:n] {
		begin, end := at.begin-p.begin, at.end-p.begin
		packets[i] = memberlist.Packet{Buf: b[begin:end:end], From: pc.from, Timestamp: pc.now}
		if tr.receive(&packets[i]) {
			received++
		}
	}
	count.received.Add(uint64(received))
	if received < n {
		count.drop(dropPoolFull, n-received)
	}
}

func (pc *packetConn) count(pool Pool) *counters {
	if pc.counts[pool] == nil {
		pc.counts[pool] = pc.t.traffic(pool, pc.p.DC)
	}
	return pc.counts[pool]
}
