// SPDX-License-Identifier: MPL-2.0

package load

// The names that a proxy under test must route.
const (
	// TLSName leads to the TLS server, by the route TLSRoute.
	TLSName  = "node1.server.dc1.wanfed"
	TLSRoute = "*.server.dc1.wanfed"
	// RawName leads to the plain server, by an exact route.
	RawName = "raw.bench.wanfed"
	// FlipName is routed to the plain server now and then: see Update.
	FlipName = "flip.bench.wanfed"
)

// After the handshake, or straight after a recorded ClientHello, a client sends a request of requestSize bytes, whose first
// byte is one of these.
const (
	opRespond = 'A' // send the request back and wait for the end
	opEcho    = 'E' // send back whatever comes, in messages of up to echoSize bytes
	opSource  = 'S' // send bulk data until the client goes away
)

const (
	requestSize = 64
	echoSize    = 4 << 10
	bulkSize    = 128 << 10 // of one write of bulk data
)

func request(op byte) []byte {
	b := make([]byte, requestSize)
	b[0] = op
	return b
}
