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

// mismatch returns the reason why this server, self, and another server cannot
// gossip, with a remedy. It returns "" if they can gossip, or can gossip as
// soon as one server has accepted the keyring of the other.
func mismatch(self, other *pb.ServerKeyring) string {
	plaintext := func(sk *pb.ServerKeyring) bool { return sk.AcceptsPlain && sk.SendsPlain }
	common := func(f string) bool { return slices.Contains(other.Fingerprints, f) }
	switch {
	case plaintext(self) && plaintext(other) || slices.ContainsFunc(self.Fingerprints, common):
		return ""
	case len(self.Fingerprints) == 0:
		return "no gossip with a server that encrypts gossip, because this server has no key; " +
			"restart this server with --encrypt-file and a file with a key of the peer"
	case len(other.Fingerprints) == 0:
		return "no gossip with a server that does not encrypt gossip; " +
			"restart the peer with --encrypt-file and a file with a key of this server"
	}
	return "no gossip with a server without a common key; " +
		"add a current key to the server with the outdated keys: wanfed keyring install --node (see its --help)"
}

const (
	// maxProblems bounds the map Service.problems.
	maxProblems = 4096
	// fingerprintLen is the length of a fingerprint in hex digits.
	fingerprintLen = 16
)

// compare logs once if this server cannot gossip with another server, and once
// when both can gossip again.
func (s *Service) compare(other *pb.ServerKeyring) {
	self, name := s.Self(), federation.WANName(other.Node, other.Datacenter)
	keys, otherKeys := strings.Join(self.Fingerprints, " "), strings.Join(sanitize(other.Fingerprints), " ")
	reason := mismatch(self, other)
	problem := ""
	if reason != "" {
		problem = fmt.Sprint(reason, keys, otherKeys)
	}
	s.mu.Lock()
	logged := s.problems[name]
	if len(s.problems) >= maxProblems {
		clear(s.problems) // all problems are logged again
	}
	delete(s.problems, name)
	if problem != "" {
		s.problems[name] = problem
	}
	s.mu.Unlock()
	switch {
	case problem != "" && problem != logged:
		s.Logger.Warn(reason, "peer", name, "keys", keys, "peer_keys", otherKeys)
	case problem == "" && logged != "":
		s.Logger.Info("gossip keys agree again", "peer", name)
	}
}

// sanitize bounds the number and the length of fingerprints from another
// server.
func sanitize(fingerprints []string) (out []string) {
	for _, f := range fingerprints[:min(len(fingerprints), gossip.MaxKeys)] {
		out = append(out, f[:min(len(f), fingerprintLen)])
	}
	return out
}

// PrimaryKey returns the key with which gossip is encrypted, in base64, or "" if
// gossip is not encrypted. It is for a new server that has proved its right to
// join.
func (s *Service) PrimaryKey() string {
	if s.Store == nil {
		return ""
	}
	return s.Store.Current().Primary().Base64()
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
		text += "; sent gossip is not encrypted"
	}
	if st.AcceptsPlain {
		text += "; unencrypted gossip is accepted"
	}
	return text
}
