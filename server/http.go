// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/tlsutil"
)

// httpPerPeer is how many HTTP connections one peer may have, of all files that this process may open: many, since a program may
// watch much over as many connections, but the store and others need files too.
func httpPerPeer() int { return max(64, min(gateway.MaxFiles()/4*3, 16384)) }

// loopback is the node of who asks without TLS, which is possible from this machine alone. It may read.
const loopback = "loopback"

// httpPeer says who asks by HTTP.
func (p *parts) httpPeer(r *http.Request) (tlsutil.Peer, error) {
	if r.TLS == nil {
		return tlsutil.Peer{Role: tlsutil.RoleClient, Node: loopback, DC: p.cfg.DC}, nil
	}
	return tlsutil.PeerFromCert(r.TLS.PeerCertificates[0], p.cfg.Domain) // the mux demands one
}
