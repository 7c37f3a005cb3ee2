// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
)

// View is a report on the keys of all servers, for an operator. It is the JSON of
// "wanfed keyring list".
type View struct {
	Version uint64       `json:"version"` // of the called server's keyring
	Keys    []Key        `json:"keys"`
	Servers []ServerKeys `json:"servers"`
}

// Key is one key of a View.
type Key struct {
	Fingerprint string `json:"fingerprint"`
	Key         string `json:"key,omitempty"` // base64; only with --show-keys
	Servers     int    `json:"servers"`       // number of servers that have the key
	PrimaryOn   int    `json:"primary_on"`    // number of servers that encrypt with the key
}

// ServerKeys is one server of a View.
type ServerKeys struct {
	Datacenter   string   `json:"datacenter"`
	Node         string   `json:"node"`
	Member       string   `json:"member"`
	Answered     bool     `json:"answered"`
	Version      uint64   `json:"version"`
	Primary      string   `json:"primary"`
	Keys         []string `json:"keys"` // fingerprints, the primary key first
	AcceptsPlain bool     `json:"accepts_plain"`
	SendsPlain   bool     `json:"sends_plain"`
	Problem      string   `json:"problem,omitempty"`
}

// NewView returns the View of a report.
func NewView(report *pb.KeyringReport) View {
	out := View{Version: report.Version, Keys: []Key{}, Servers: []ServerKeys{}}
	find := func(fingerprint string) *Key {
		i := slices.IndexFunc(out.Keys, func(k Key) bool { return k.Fingerprint == fingerprint })
		if i < 0 {
			i = len(out.Keys)
			out.Keys = append(out.Keys, Key{Fingerprint: fingerprint})
		}
		return &out.Keys[i]
	}
	for i, fingerprint := range report.Fingerprints {
		if k := find(fingerprint); i < len(report.Keys) {
			k.Key = report.Keys[i]
		}
	}
	for _, s := range report.Servers {
		for i, fingerprint := range s.Fingerprints {
			k := find(fingerprint)
			k.Servers++
			if i == 0 {
				k.PrimaryOn++
			}
		}
		out.Servers = append(out.Servers, ServerKeys{
			Datacenter: s.Datacenter, Node: s.Node, Member: s.Member, Answered: s.Error == "", Version: s.Version,
			Primary: FirstOf(s.Fingerprints), Keys: append([]string{}, s.Fingerprints...),
			AcceptsPlain: s.AcceptsPlain, SendsPlain: s.SendsPlain, Problem: problem(s, report),
		})
	}
	return out
}

// problem describes the difference between the keys of a server and the keys
// of the called server. It returns "" if they are equal.
func problem(s *pb.ServerKeyring, report *pb.KeyringReport) string {
	var problems []string
	switch {
	case s.Error != "":
		return "no answer: " + s.Error
	case len(s.Fingerprints) == 0 && len(report.Fingerprints) == 0:
		return ""
	case len(s.Fingerprints) == 0:
		return "gossip is not encrypted"
	case len(report.Fingerprints) == 0:
		return "gossip is encrypted"
	case s.Fingerprints[0] != report.Fingerprints[0]:
		problems = append(problems, "another primary key")
	}
	for _, k := range report.Fingerprints {
		if !slices.Contains(s.Fingerprints, k) {
			problems = append(problems, "lacks "+k)
		}
	}
	for _, k := range s.Fingerprints {
		if !slices.Contains(report.Fingerprints, k) {
			problems = append(problems, "also has "+k)
		}
	}
	if s.SendsPlain {
		problems = append(problems, "sends plain gossip")
	}
	if s.AcceptsPlain {
		problems = append(problems, "accepts plain gossip")
	}
	return strings.Join(problems, "; ")
}

// Missed returns the servers, as node.datacenter, that have not confirmed the
// keyring of the called server.
func Missed(report *pb.KeyringReport) (servers []string) {
	for _, s := range report.Servers {
		if s.Error != "" || s.Version != report.Version || !slices.Equal(s.Fingerprints, report.Fingerprints) {
			servers = append(servers, s.Node+"."+s.Datacenter)
		}
	}
	return servers
}

// FirstOf returns the first of fingerprints, which is the primary key, or "".
func FirstOf(fingerprints []string) string {
	if len(fingerprints) == 0 {
		return ""
	}
	return fingerprints[0]
}
