// SPDX-License-Identifier: MPL-2.0

// Package sockets contains the socket functions that both engines of a gateway
// use. The functions detect dead peers ([SetKeepalive]) and clients that
// disconnect ([PeerClosed]). They handle a process that is out of file
// descriptors ([MaxFiles], [IsTemporary], [OutOfFiles], [ReserveFD]).
//
//	sockets.SetKeepalive(conn)
//	if sockets.PeerClosed(conn, false) { // the client is gone: do not dial for it
//		conn.Close()
//	}
//
// PeerClosed and MaxFiles work on Linux. On other systems, PeerClosed reports
// false, and MaxFiles a very large number.
//
// The package starts no goroutine. A ReserveFD is safe for concurrent use.
package sockets
