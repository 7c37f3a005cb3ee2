// SPDX-License-Identifier: MPL-2.0

// Package raftgroup finds the other servers of a datacenter, and forms their
// first Raft group. Package server/operator maintains the membership of the
// group later.
//
// # Flow
//
// [Contacts] has the last known addresses of the other servers. [Group.RunJoin]
// contacts them until all are alive in the LAN pool. [Group.RunBootstrap] forms
// the first group once the expected number of new servers is alive. Only the
// first of them by name writes the configuration, and the others wait for its
// messages.
//
// A restarted server requests from the other voters which entries it had
// confirmed. If its log lacks such an entry, because an older copy of its data
// directory was restored, it has no vote until it has caught up.
//
// [Names] finds a second server with the name of this server, for example a
// copied virtual machine. The Raft group decides which of the two is the
// duplicate.
//
// # Example
//
//	contacts := raftgroup.NewContacts(raftgroup.ContactsConfig{DC: "dc1", Node: "srv1", ...})
//	group := raftgroup.New(raftgroup.Config{Node: "srv1", Expect: 3, Contacts: contacts, ...})
//	g.Go(func() error { return contacts.Run(ctx) })
//	g.Go(func() error { return group.RunJoin(ctx) })
//	g.Go(func() error { return group.RunBootstrap(ctx) })
//
// # Limits
//
// A first group has 1, 3 or 5 servers. The file of the contacts has at most 100
// servers. A started server waits at most 2 seconds for the other voters.
package raftgroup
