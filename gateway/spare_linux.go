// SPDX-License-Identifier: MPL-2.0

package gateway

func (w *worker) newPair() *pair {
	var p *pair
	if n := len(w.sparePairs); n > 0 {
		p, w.sparePairs = w.sparePairs[n-1], w.sparePairs[:n-1]
	} else {
		p = &pair{}
	}
	p.client, p.upstream = socket{pair: p, fd: -1}, socket{pair: p, fd: -1}
	p.state = stateHello
	return p
}

func (w *worker) freePair(p *pair) {
	*p = pair{state: stateClosed}
	p.client.pair, p.upstream.pair = p, p
	if len(w.sparePairs) < spareStruct {
		w.sparePairs = append(w.sparePairs, p)
	}
}

func (w *worker) newSearch() *search {
	if n := len(w.spareSearches); n > 0 {
		s := w.spareSearches[n-1]
		w.spareSearches = w.spareSearches[:n-1]
		return s
	}
	s := &search{}
	s.newer = s.latest
	return s
}

func (w *worker) freeSearch(s *search) {
	s.life++
	s.pair, s.table, s.to, s.race = nil, nil, nil, race{asked: s.asked[:0]}
	s.one, s.oneUsed = try{}, false
	if cap(s.hello) > 2*helloBuffer {
		s.hello = nil
	}
	if len(w.spareSearches) < spareStruct {
		w.spareSearches = append(w.spareSearches, s)
	}
}
