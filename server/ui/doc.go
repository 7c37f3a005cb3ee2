// SPDX-License-Identifier: MPL-2.0

// Package ui serves the web UI of a server: a page that reads the HTTP API of
// the server and shows the federation, its faults and what to do.
//
//	mux.Handle("GET /ui/", ui.Handler())
//
// The files of the page are built from the directory ui in the root of the
// repository by "make ui". They are committed in the directory dist and are part
// of the program, so a build of the program needs no other tool.
//
// # Safety
//
// The files have no data and are the same for all callers. The page has the
// rights of the caller of its requests to the HTTP API, which decides about each
// of them. The page only reads.
//
// Each response has a Content-Security-Policy: the browser runs scripts and
// loads styles of this server only, connects to no other server, and shows the
// page in no frame. A value that a client has stored can therefore not run as a
// script, even if the page had a fault.
//
// # Limits
//
// The files have at most 250 kB when compressed. The server sends them
// uncompressed. A browser keeps them, and compares their ETag with that of the
// server each time.
package ui
