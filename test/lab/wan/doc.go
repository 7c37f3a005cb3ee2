// SPDX-License-Identifier: MPL-2.0

// Package wan emulates a wide area network between network namespaces. Each
// direction between two namespaces has its own delay, jitter, loss and rate,
// and can be cut. All of these can change while packets flow. The package works
// on kernels without netem. It needs the TUN driver and no external tool.
//
// The caller creates the namespaces and assigns the addresses of the devices,
// as package lab does.
//
// # Flow
//
// Attach creates a TUN device in a namespace. Every IP packet that the
// namespace sends to the WAN is read from that device by Run. Run looks up the
// port that has the destination address. The Path between the two ports then
// either drops and counts the packet, or queues it until it is due. Run writes
// due packets to the device of the destination, in order.
//
//	sender → rate (tail drop) → loss → delay + jitter → cut? → receiver
//
// # Goroutines
//
// Run starts one goroutine on its own thread and joins it. The thread has
// real-time priority where the system allows that. It does not allocate per
// packet. Attach waits for a goroutine that enters the namespace for a few
// system calls.
//
// # Promises and limits
//
// A packet is never delivered before it is due. It is usually delivered within
// 0.2 ms after that, also while other processes keep the machine busy.
// Goroutines of this process that keep all of GOMAXPROCS busy can delay the
// switch. Stats.Late is the largest such delay.
//
// One core switches at least 0.5 Gbit/s. IPv4 and IPv6 unicast are supported.
// The TTL is not changed. A packet to an address that no port has is dropped
// without an ICMP message, and so is every packet on a cut path. Packets of one
// path are never reordered, neither by jitter nor by Path.Set.
//
// # Example
//
//	w, err := wan.New(wan.Config{Link: wan.Link{Delay: 40 * time.Millisecond}})
//	...
//	go w.Run(ctx) // join it after ctx ends
//	a, err := w.Attach("gw1", "wan0", netip.MustParseAddr("198.18.1.1")) // then: ip -n gw1 addr add 198.18.1.1/16 dev wan0
//	b, err := w.Attach("gw2", "wan0", netip.MustParseAddr("198.18.2.1"))
//	err = w.Path(a, b).Set(wan.Link{Cut: true}) // cuts a → b; b → a still works
package wan
