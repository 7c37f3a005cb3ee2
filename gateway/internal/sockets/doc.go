// SPDX-License-Identifier: MPL-2.0

// Package sockets contains the socket functions of both engines of a gateway.
// They detect dead peers ([SetKeepalive]), detect a client that disconnects
// ([PeerClosed]), and handle a process that is out of file descriptors
// ([MaxFiles], [IsTemporary], [OutOfFiles], [ReserveFD]).
//
// It starts no goroutine. ReserveFD is safe for concurrent use.
package sockets
