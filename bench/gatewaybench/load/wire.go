// SPDX-License-Identifier: MPL-2.0

package load

// Server names that a proxy under test must route.
const (
	// TLSName is routed to the TLS server, by TLSRoute.
	TLSName  = "node1.server.dc1.wanfed"
	TLSRoute = "*.server.dc1.wanfed"
	// RawName is routed to the plain server, by an exact route.
	RawName = "raw.bench.wanfed"
	// FlipName is routed to the plain server after every second change: see
	// Update.
	FlipName = "flip.bench.wanfed"
)

// After the handshake, or directly after a recorded ClientHello, a client sends
// a request of requestSize bytes. The first byte of the request is one of these
// operations.
const (
	opRespond = 'A' // send the request back and wait for the end of the data
	opEcho    = 'E' // send back all data, in messages of up to echoSize bytes
	opSource  = 'S' // send bulk data until the client closes the connection
)

const (
	requestSize = 64
	echoSize    = 4 << 10
	bulkSize    = 128 << 10 // size of one write of bulk data
)

func request(op byte) []byte {
	b := make([]byte, requestSize)
	b[0] = op
	return b
}
