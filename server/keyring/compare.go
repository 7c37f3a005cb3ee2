// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
)

// mismatch returns the reason why two servers cannot gossip, with a remedy. It
// returns "" if they can gossip, or can gossip as soon as one has accepted the
// keyring of the other. It is pure.
func mismatch(self, other *pb.ServerKeyring) string {
	plaintext := func(sk *pb.ServerKeyring) bool { return sk.AcceptsPlain && sk.SendsPlain }
	switch {
	case plaintext(self) && plaintext(other):
		return ""
	case len(self.Fingerprints) == 0:
		return "no gossip with a server that encrypts it: this one has no key; " +
			"put a key of the other one into a file and start this one with --encrypt-file"
	case len(other.Fingerprints) == 0:
		return "no gossip with a server that does not encrypt it: " +
			"start that one with --encrypt-file, which names a file with a key of this one"
	case !slices.ContainsFunc(self.Fingerprints, func(f string) bool { return slices.Contains(other.Fingerprints, f) }):
		return "no gossip with a server that has none of the keys of this one; " +
			"to whichever of the two is out of date give a key that the others use: " +
			"wanfed keyring install --node (see its --help)"
	}
	return ""
}

const (
	// maxProblems bounds Service.problems.
	maxProblems = 4096
	// fingerprintLen is the length of a fingerprint in hex digits.
	fingerprintLen = 16
)

// compare logs once if this server cannot gossip with another server, and once
// when both can gossip again.
func (s *Service) compare(other *pb.ServerKeyring) {
	self, name := s.Self(), federation.WANName(other.Node, other.Datacenter)
	keys, otherKeys := strings.Join(self.Fingerprints, " "), strings.Join(sanitize(other.Fingerprints), " ")
	why := mismatch(self, other)
	problem := ""
	if why != "" {
		problem = fmt.Sprint(why, keys, otherKeys)
	}
	s.mu.Lock()
	before := s.problems[name]
	if len(s.problems) >= maxProblems {
		clear(s.problems) // each problem is logged once more
	}
	delete(s.problems, name)
	if problem != "" {
		s.problems[name] = problem
	}
	s.mu.Unlock()
	switch {
	case problem != "" && problem != before:
		s.Logger.Warn(why, "peer", name, "keys", keys, "peer_keys", otherKeys)
	case problem == "" && before != "":
		s.Logger.Info("gossip keys agree again", "peer", name)
	}
}

// sanitize bounds the fingerprints from another server, to limit memory and the
// log.
func sanitize(fingerprints []string) (out []string) {
	for _, f := range fingerprints[:min(len(fingerprints), gossip.MaxKeys)] {
		out = append(out, f[:min(len(f), fingerprintLen)])
	}
	return out
}

// Status returns the status of this server's keyring.
func (s *Service) Status() api.GossipStatus {
	self := s.Self()
	out := api.GossipStatus{
		Encrypted: len(self.Fingerprints) > 0, Keys: len(self.Fingerprints), Version: self.Version,
		AcceptsPlain: self.AcceptsPlain, SendsPlain: self.SendsPlain,
	}
	if out.Encrypted {
		out.Primary = self.Fingerprints[0]
	}
	return out
}

// Detail returns Status as text.
func (s *Service) Detail() string {
	st := s.Status()
	if !st.Encrypted {
		return "not encrypted"
	}
	text := fmt.Sprintf("encrypted with %s, version %d, %d keys", st.Primary, st.Version, st.Keys)
	if st.Keys == 1 {
		text = strings.TrimSuffix(text, "s")
	}
	if st.SendsPlain {
		text += "; what is sent is not encrypted yet"
	}
	if st.AcceptsPlain {
		text += "; plain gossip is accepted too"
	}
	return text
}
