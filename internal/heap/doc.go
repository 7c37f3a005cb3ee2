// SPDX-License-Identifier: MPL-2.0

// Package heap lets a process that is busy collect garbage less often, as long as its heap is small.
//
// Go collects when the heap has doubled. A server that needs five megabytes and allocates fifty in a second collects ten times in
// that second, for some milliseconds each, in which whoever asks waits: more than one answer in a hundred. While a process allocates
// much, Run lets its heap become Room before it is collected; when that is over, it goes back to Go's default and gives the memory
// back, so that a process that idles keeps no more than before.
//
// A large heap need not double, either: what a busy process may have besides what it needs is half of Room, an idle one 8 MiB, or a
// quarter of what it needs, if that is more. The collector is told what was in use after the last collection, at most a second
// later.
//
// It is a setting of the process: only a command's main function runs it, once. It starts no goroutine.
package heap
