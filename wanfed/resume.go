// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"crypto/tls"

	"github.com/wanfed/wanfed/tlsutil"
)

// clientConfig is for one dial to sni. Its session can be resumed when the dialer reads from a connection of any of these
// protocols until it ends, so that no ticket is left unread. A stream of ProtoConsulStream may be only written.
func clientConfig(id *tlsutil.Identity, sni string, alpn []string) *tls.Config {
	for _, p := range alpn {
		switch p {
		case ProtoGossip, ProtoConsulPacket, ProtoStream, ProtoRaft, ProtoGRPC:
		default:
			return id.ClientConfig(sni, alpn...)
		}
	}
	return id.ResumingClientConfig(sni, alpn...)
}
