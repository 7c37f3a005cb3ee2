// SPDX-License-Identifier: MPL-2.0

package wanfed

import "time"

// timing has the tunnel's time limits; tests shorten them.
type timing struct {
	dial       time.Duration // one dial of a link or session, over all hops
	write      time.Duration // one write
	echoEvery  time.Duration // a link asks for an echo this often
	silence    time.Duration // and is dead when it heard nothing for so long
	stale      time.Duration // what waited longer for a connection is not sent
	quiet      time.Duration // a link without packets for so long asks for echoes less often, and retires if it has no connection
	quietEcho  time.Duration // this often
	quietLinks int           // a quiet link is closed by who dialed it when so many others were used later,
	linkIdle   time.Duration // or when it had no packets for so long;
	spare      time.Duration // one that had none for so long, when twice as many others were used later
	peerIdle   time.Duration // who accepted a connection closes it when nothing came for so long, not even an echo
	body       time.Duration // between the head of a frame and its last byte; between accepting a stream and its header
	settled    time.Duration // a connection that lived this long resets the back-off
	backoffMin time.Duration
	backoffMax time.Duration
	better     time.Duration // a connection on a fallback way looks for a better one this often, and when the book changes
	consulAge  time.Duration // a Consul packet connection, on which nothing comes back, is made anew this often
	open       time.Duration // opening a stream for which the caller gives no deadline, and relaying one
	streamIdle time.Duration // a relayed stream on which nothing moves
	session    time.Duration // a session without streams is closed by who dialed it
	keepalive  time.Duration // yamux: asks this often
	muxWrite   time.Duration // yamux: and is dead when no answer came for so long, or a write took so long
}

func defaultTiming() timing {
	return timing{
		dial: 15 * time.Second, write: 5 * time.Second,
		echoEvery: 3 * time.Second, silence: 10 * time.Second,
		stale: time.Second, quiet: time.Minute, quietEcho: 30 * time.Second, quietLinks: 128, linkIdle: 30 * time.Minute, spare: 2 * time.Second,
		peerIdle: 2 * time.Minute, body: 10 * time.Second,
		settled: 5 * time.Second, backoffMin: 100 * time.Millisecond, backoffMax: 5 * time.Second,
		better: 30 * time.Second, consulAge: 30 * time.Second,
		open: 10 * time.Second, streamIdle: 5 * time.Minute, session: time.Minute,
		keepalive: 3 * time.Second, muxWrite: 7 * time.Second,
	}
}

// defaultQueueBytes is some 190 packets of memberlist's usual size: half a minute of gossip to a datacenter.
const defaultQueueBytes = 256 << 10

// maxLinks bounds links and sessions each, since their targets' names come from peers.
const maxLinks = 4096
