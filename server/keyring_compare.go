// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
)

// canGossip says why two servers cannot gossip, by what they have, and what to do; empty: they can, or will once one of them
// has taught the other. It is pure.
func canGossip(own, theirs *pb.ServerKeyring) (trouble string) {
	bothPlain := func(s *pb.ServerKeyring) bool { return s.AcceptsPlain && s.SendsPlain }
	switch {
	case bothPlain(own) && bothPlain(theirs):
		return ""
	case len(own.Fingerprints) == 0:
		return "no gossip with a server that encrypts it: this one has no key; put a key of the other one into a file and start this one with --encrypt-file"
	case len(theirs.Fingerprints) == 0:
		return "no gossip with a server that does not encrypt it: start that one with --encrypt-file, which names a file with a key of this one"
	case !agree(own.Fingerprints, theirs.Fingerprints):
		return "no gossip with a server that has none of the keys of this one; to whichever of the two is out of date give a key that the others use: " +
			"wanfed keyring install --only (see its --help)"
	}
	return ""
}

// agree says whether two rings have a key in common, by their fingerprints.
func agree(a, b []string) bool {
	return slices.ContainsFunc(a, func(f string) bool { return slices.Contains(b, f) })
}

// maxTold bounds the servers of which it is remembered what was logged.
const maxTold = 4096

// compare looks whether this server and another can gossip, and logs it, once, when they cannot. It says whether they can.
func (k *keyring) compare(theirs *pb.ServerKeyring) (ok bool) {
	own, name := k.self(), federation.WANName(theirs.Node, theirs.Datacenter)
	ours, their := strings.Join(own.Fingerprints, " "), strings.Join(bounded(theirs.Fingerprints), " ")
	trouble := canGossip(own, theirs)
	is := ""
	if trouble != "" {
		is = fmt.Sprint(trouble, ours, their)
	}
	k.mu.Lock()
	was := k.told[name]
	if len(k.told) >= maxTold {
		clear(k.told) // only a memory: each may be logged once more
	}
	delete(k.told, name)
	if is != "" {
		k.told[name] = is
	}
	k.mu.Unlock()
	switch {
	case trouble != "" && is != was:
		k.logger.Warn(trouble, "peer", name, "keys", ours, "theirs", their)
	case trouble == "" && was != "":
		k.logger.Info("gossip keys agree again", "peer", name)
	}
	return trouble == ""
}

// fingerprintLen is the length of a fingerprint in hex digits.
const fingerprintLen = 16

// bounded makes fingerprints that came over the network fit to be kept and logged.
func bounded(theirs []string) (out []string) {
	for _, f := range theirs[:min(len(theirs), gossip.MaxKeys)] {
		out = append(out, f[:min(len(f), fingerprintLen)])
	}
	return out
}
