// SPDX-License-Identifier: MPL-2.0

package keyring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/dcrpc"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/wanfed"
)

// Config configures a Service. Fields are required unless documented otherwise.
type Config struct {
	// DC and Node name this server. PrimaryDC is the datacenter that makes new
	// keyrings.
	DC, Node, PrimaryDC string
	// AcceptsPlaintext and SendsPlaintext enable encryption server by server:
	// see the fields GossipAcceptPlain and GossipSendPlain of server.Config.
	// They have no effect without a Store.
	AcceptsPlaintext, SendsPlaintext bool
	// RetryJoin returns addresses (host:port) of servers of this datacenter.
	// Servers returns the last known address of each other server, by node.
	// Both are used while no other server is alive in the LAN pool, because
	// outdated keys may be the reason.
	RetryJoin func() []string
	Servers   func() map[string]string
	// Store has the keyring. nil means that gossip is not encrypted.
	Store    *gossip.KeyringStore
	LAN, WAN *gossip.Pool
	// RaftPeers returns the nodes of the Raft group.
	RaftPeers func() ([]string, error)
	Book      *wanfed.SharedAddressBook
	Dialer    *wanfed.Dialer // dials servers of this datacenter
	Calls     *dcrpc.Client  // calls servers of other datacenters
	Logger    *slog.Logger
}

// Service serves the KeyringService, and exchanges keyrings with other servers.
type Service struct {
	pb.UnimplementedKeyringServiceServer
	Config
	changing chan struct{} // size 1: has a token while a new keyring is made

	mu       sync.Mutex
	problems map[string]string // by server: the mismatch that was logged
}

// New returns a Service.
func New(cfg Config) *Service {
	return &Service{Config: cfg, changing: make(chan struct{}, 1), problems: map[string]string{}}
}

const notEncrypted = "gossip is not encrypted at %s: restart every server with --encrypt-file; " +
	"for the steps see: wanfed keyring --help"

// Change implements pb.KeyringServiceServer.
func (s *Service) Change(ctx context.Context, req *pb.ChangeKeyringRequest) (*pb.KeyringReport, error) {
	operator, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case s.DC != s.PrimaryDC:
		return nil, status.Errorf(codes.FailedPrecondition,
			"%s is not the primary: the keyring is changed in %s; call a server there, directly or through a gateway",
			s.DC, s.PrimaryDC)
	case s.Store == nil:
		return nil, status.Errorf(codes.FailedPrecondition, notEncrypted, federation.WANName(s.Node, s.DC))
	}
	select {
	case s.changing <- struct{}{}:
		defer func() { <-s.changing }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	servers := s.collect(ctx) // this server may accept a newer keyring
	before := s.Store.Current()
	next, key, err := apply(before, req)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if affected := cutOff(req.Op, key, before, servers); len(affected) > 0 && !req.Force {
		return report(servers, before, refusal(req.Op, key, affected, len(servers))), nil
	}
	now, err := s.Store.Update(func(r gossip.Keyring) (gossip.Keyring, error) {
		if r.Version != before.Version {
			return r, errors.New("another server changed the keyring at the same time; try again")
		}
		return next, nil
	})
	if err != nil {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	if now.Version == before.Version {
		return report(servers, now, ""), nil // collect has sent the keyring to the other servers
	}
	s.Logger.Info("gossip keyring changed by an operator", "peer", operator.String(), "op",
		strings.ToLower(strings.TrimPrefix(req.Op.String(), "OP_")),
		"key", key.Fingerprint(), "version", now.Version, "force", req.Force)
	out := report(s.collect(ctx), now, "")
	out.Changed = true
	return out, nil
}

// apply returns the keyring after the change req, and the changed key.
func apply(r gossip.Keyring, req *pb.ChangeKeyringRequest) (next gossip.Keyring, key gossip.Key, err error) {
	switch req.Op {
	case pb.ChangeKeyringRequest_OP_INSTALL:
		if key, err = gossip.ParseKey(req.Key); err == nil {
			next, err = r.Add(key)
		}
	case pb.ChangeKeyringRequest_OP_USE:
		if key, err = r.Find(req.Key); err == nil {
			next, err = r.Use(key)
		}
	case pb.ChangeKeyringRequest_OP_REMOVE:
		if key, err = r.Find(req.Key); err == nil {
			next, err = r.Remove(key)
		}
	default:
		err = fmt.Errorf("op is %v: must be install, use or remove", req.Op)
	}
	return next, key, err
}

// cutOff returns the servers that would have no common key after a change of
// keyring r.
//
// A key may be used if every server that is alive has the key. A key may be
// removed if every known server, alive or not, uses the primary key. A server
// that has missed the change of the primary key still shares the old key with
// the other servers. When the server returns, it receives the new keyring,
// encrypted with the old key. Without the old key, the server could not decrypt
// the new keyring.
func cutOff(
	op pb.ChangeKeyringRequest_Op, key gossip.Key, r gossip.Keyring, servers []*pb.ServerKeyring,
) (affected []*pb.ServerKeyring) {
	for _, sk := range servers {
		noCommonKey := false
		switch op {
		case pb.ChangeKeyringRequest_OP_USE:
			noCommonKey = !slices.Contains(sk.Fingerprints, key.Fingerprint()) &&
				(sk.Error == "" || sk.Member == gossip.StatusAlive.String())
		case pb.ChangeKeyringRequest_OP_REMOVE:
			noCommonKey = sk.Error != "" || len(sk.Fingerprints) == 0 || sk.Fingerprints[0] != r.Fingerprints()[0]
		}
		if noCommonKey {
			affected = append(affected, sk)
		}
	}
	return affected
}

// refusal returns the reason why a change is refused, for the operator.
func refusal(op pb.ChangeKeyringRequest_Op, key gossip.Key, affected []*pb.ServerKeyring, total int) string {
	const shown = 5
	var names []string
	for _, sk := range affected[:min(len(affected), shown)] {
		names = append(names, federation.WANName(sk.Node, sk.Datacenter))
	}
	if len(affected) > shown {
		names = append(names, "...")
	}
	servers := fmt.Sprintf("%d of %d servers (%s)", len(affected), total, strings.Join(names, ", "))
	if op == pb.ChangeKeyringRequest_OP_REMOVE {
		return fmt.Sprintf("key %s is not removed: %s may still need the key to receive other keys; "+
			"wait until these servers respond, or cut them off with --force", key, servers)
	}
	return fmt.Sprintf("key %s is not used: %s do not have the key; "+
		"install the key again when these servers respond, or cut them off with --force", key, servers)
}

// List implements pb.KeyringServiceServer.
func (s *Service) List(ctx context.Context, req *pb.ListKeyringRequest) (*pb.KeyringReport, error) {
	servers := s.collect(ctx)
	if s.Store == nil {
		return &pb.KeyringReport{Servers: servers}, nil
	}
	r := s.Store.Current()
	out := report(servers, r, "")
	if req.ShowKeys {
		for _, key := range r.Keys {
			out.Keys = append(out.Keys, key.Base64())
		}
	}
	return out, nil
}

func report(servers []*pb.ServerKeyring, r gossip.Keyring, refused string) *pb.KeyringReport {
	return &pb.KeyringReport{Servers: servers, Version: r.Version, Fingerprints: r.Fingerprints(), Refused: refused}
}

// Give implements pb.KeyringServiceServer. It adds a key to the keyring of this
// server alone and resets the version of that keyring. Any keyring of the
// federation that has the key then supersedes the keyring of this server.
func (s *Service) Give(ctx context.Context, req *pb.GiveKeyRequest) (*pb.ServerKeyring, error) {
	operator, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	if s.Store == nil {
		return nil, status.Errorf(codes.FailedPrecondition, notEncrypted, federation.WANName(s.Node, s.DC))
	}
	key, err := gossip.ParseKey(req.Key)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	_, err = s.Store.Update(func(r gossip.Keyring) (gossip.Keyring, error) {
		if r.Has(key) {
			return r, nil
		}
		next, err := r.Add(key)
		next.Version = 0
		return next, err
	})
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	s.Logger.Info("gossip key added to this server by an operator", "peer", operator.String(), "key", key.Fingerprint())
	return s.Self(), nil
}

// Exchange implements pb.KeyringServiceServer. It accepts the caller's keyring
// if that keyring is newer. It returns the keyring of this server if that
// keyring is newer.
func (s *Service) Exchange(ctx context.Context, req *pb.ExchangeKeyringRequest) (*pb.ExchangeKeyringResponse, error) {
	caller, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	resp := &pb.ExchangeKeyringResponse{}
	if s.Store != nil {
		s.accept(req.Sealed)
		r := s.Store.Current()
		if gossip.KeyringSupersedes(r.Version, r.Fingerprints(), req.Version, req.Fingerprints) {
			sealed, err := r.Encrypt(req.Fingerprints)
			if err == nil && len(req.Fingerprints) > 0 && len(sealed) > 0 {
				resp.Sealed = &pb.SealedKeyring{Fingerprint: sealed[0].Fingerprint, Box: sealed[0].Ciphertext}
			}
		}
	}
	s.compare(&pb.ServerKeyring{
		Datacenter: caller.DC, Node: caller.Node, Fingerprints: req.Fingerprints,
		AcceptsPlain: req.AcceptsPlain, SendsPlain: req.SendsPlain,
	})
	if req.Datacenter {
		resp.Servers = s.collectLocal(ctx, req.Sealed)
	} else {
		resp.Servers = []*pb.ServerKeyring{s.Self()}
	}
	return resp, nil
}

// accept accepts the keyring of another server if it is newer and can be
// decrypted.
func (s *Service) accept(sealed []*pb.SealedKeyring) {
	if s.Store == nil || len(sealed) == 0 || len(sealed) > 2*gossip.MaxKeys {
		return
	}
	encrypted := make([]gossip.EncryptedKeyring, len(sealed))
	for i, e := range sealed {
		encrypted[i] = gossip.EncryptedKeyring{Fingerprint: e.GetFingerprint(), Ciphertext: e.GetBox()}
	}
	if _, err := s.Store.AcceptNewer(encrypted); err != nil && !errors.Is(err, gossip.ErrNoSharedKey) {
		s.Logger.Warn("cannot accept a newer gossip keyring", "err", err)
	}
}

// Self returns the keyring of this server as other servers see it: without
// keys.
func (s *Service) Self() *pb.ServerKeyring {
	out := &pb.ServerKeyring{Datacenter: s.DC, Node: s.Node, AcceptsPlain: true, SendsPlain: true}
	if s.Store != nil {
		r := s.Store.Current()
		out.Version, out.Fingerprints = r.Version, r.Fingerprints()
		out.AcceptsPlain, out.SendsPlain = s.AcceptsPlaintext, s.SendsPlaintext
	}
	return out
}
