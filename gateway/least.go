// SPDX-License-Identifier: MPL-2.0

package gateway

// inOrder in place of the number of an address says that the addresses are asked in their own order, however many connections
// each has.
const inOrder = -1

// least is the choice among addresses that did not fail lately. They are looked at in turn.
type least struct {
	number int    // of the one that has the fewest connections, those that are being made included
	known  *known // what is known of it; nil before the first look
}

// look makes address n the choice, if it has fewer connections than that so far, or as many and usually answers before that would be
// overdue. k may be nil: nothing is known.
func (l *least) look(n int, k *known) {
	if k == nil {
		k = &unknown
	}
	if l.known == nil || k.before(l.known) {
		l.number, l.known = n, k
	}
}

// unknown is an address of which nothing is known. Nobody writes to it.
var unknown known

// before says whether k is to be asked rather than other.
func (k *known) before(other *known) bool {
	if a, b := k.load(), other.load(); a != b {
		return a < b
	}
	return k.typical > 0 && other.typical > k.usual()
}

// load is how many connections there are, those that are being made included.
func (u *use) load() int { return u.tries + u.open }

// OpenTo returns how many connections are open to each upstream address that has any, of all sides.
func (p *Proxy) UpstreamConns() map[string]int {
	e := &p.dialer.evidence
	e.mu.Lock()
	defer e.mu.Unlock()
	open := map[string]int{}
	for addr, k := range e.of {
		if k.open > 0 {
			open[addr] = k.open
		}
	}
	return open
}
