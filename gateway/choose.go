// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// choose finds the route for a hello, or says why its client is refused. Both: the route is there, but not for this client.
func (t *Table) choose(hello Hello) (*target, *refusal) {
	if len(hello.SNI) == 0 {
		return nil, &refusal{reason: ReasonNoSNI, err: errors.New("the ClientHello has no server_name")}
	}
	to := t.find(hello.SNI)
	if to == nil {
		return nil, &refusal{reason: ReasonUnknownSNI, sni: string(hello.SNI)}
	}
	if !to.takes(hello) {
		return to, &refusal{reason: ReasonProtocol, sni: string(hello.SNI), err: fmt.Errorf("it offers %s", offer(hello))}
	}
	return to, nil
}

// takes says whether the client offers a protocol that the route wants.
func (t *target) takes(hello Hello) bool {
	if len(t.Protocols) == 0 {
		return true
	}
	for id := range hello.ALPN() {
		for _, want := range t.Protocols {
			if string(id) == want {
				return true
			}
		}
	}
	return false
}

// offer names the first of the protocols that a client offers.
func offer(hello Hello) string {
	const most = 4
	var ids []string
	for id := range hello.ALPN() {
		if len(ids) == most {
			ids = append(ids, "...")
			break
		}
		ids = append(ids, strconv.Quote(clip(string(id))))
	}
	if ids == nil {
		return "none"
	}
	return strings.Join(ids, ", ")
}
