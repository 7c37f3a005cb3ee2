// SPDX-License-Identifier: MPL-2.0

package gateway

import "time"

// queue has pairs in the order in which they came. A pair is in one queue at most.
type queue struct {
	first, last *pair
}

func (l *queue) push(p *pair) {
	p.prev, p.next = l.last, nil
	if l.last != nil {
		l.last.next = p
	} else {
		l.first = p
	}
	l.last = p
}

// remove takes p out, if it is in.
func (l *queue) remove(p *pair) {
	if p.prev == nil && l.first != p {
		return
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	p.prev, p.next = nil, nil
}

// youth is how old a pair is, at least, when its sockets are set to find a dead peer: most are closed before that could matter,
// and it takes a handful of system calls.
const youth = time.Second

// watchPeers sets the sockets of pairs that have outlived their youth, and returns how long it is until the next one does;
// negative: there is none.
func (w *worker) watchPeers() time.Duration {
	for p := w.young.first; p != nil; p = w.young.first {
		if left := p.relayed + youth - w.now.Sub(w.start); left > 0 {
			return left
		}
		w.young.remove(p)
		sysWatchPeer(p.upstream.fd)
		if !p.watched {
			sysWatchPeer(p.client.fd)
		}
	}
	return -1
}
