// SPDX-License-Identifier: MPL-2.0

// Package sockets has what both engines of a gateway do with sockets: they
// detect dead peers ([SetKeepalive]), notice a client that disconnects
// ([PeerClosed]), and handle a process that is out of file descriptors
// ([MaxFiles], [IsTemporary], [OutOfFiles], [ReserveFD]).
//
// It starts no goroutine. ReserveFD is safe for concurrent use.
package sockets
