// SPDX-License-Identifier: MPL-2.0

// Package wan emulates a wide area network between network namespaces: delay, jitter, loss, a limited rate and cuts, per
// direction and pair, changeable while packets flow. It is for kernels without netem, and needs no tool and no module but the
// TUN driver.
//
// It leaves to others to make the namespaces and to give the devices their addresses (package lab does).
//
// # Flow
//
// Attach makes a TUN device in a namespace: every IP packet that this namespace sends to the WAN can be read from it. Run
// reads them, looks for the port that has the destination's address, and lets the Path from one port to the other decide: a
// packet is dropped and counted, or waits in the path's queue until it is due and is written to the other device, in order.
//
//	sender → rate (tail drop) → loss → delay + jitter → cut? → receiver
//
// # Goroutines
//
// Run has one, on a thread of its own with real-time priority where the system allows that, and joins it. It does not
// allocate per packet. A caller of Attach waits for a goroutine that is inside the namespace for a few system calls.
//
// # Promises and limits
//
// A packet is never delivered before it is due, and as a rule within two tenths of a millisecond after, also while other
// processes keep the machine busy; goroutines of this process that keep all of GOMAXPROCS busy can hold the switch up.
// Stats.Late says what was added at worst. Half a gigabit per second is no trouble on one core. IPv4 and IPv6 unicast; the TTL
// stays as it is; a packet to an address that no port has is dropped without an ICMP answer, and so is everything on a cut
// path. Packets of one path never overtake each other, whatever jitter does and whatever Set changes.
//
// # Example
//
//	w, err := wan.New(wan.Config{Link: wan.Link{Delay: 40 * time.Millisecond}})
//	...
//	go w.Run(ctx) // joined by who ends ctx
//	a, err := w.Attach("gw1", "wan0", netip.MustParseAddr("198.18.1.1")) // then: ip -n gw1 addr add 198.18.1.1/16 dev wan0
//	b, err := w.Attach("gw2", "wan0", netip.MustParseAddr("198.18.2.1"))
//	err = w.Path(a, b).Set(wan.Link{Cut: true}) // a's packets do not reach b any more; b's still reach a
package wan
