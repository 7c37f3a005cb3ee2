// SPDX-License-Identifier: MPL-2.0

package server

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

// keyring keeps the gossip keys of this server and those of all others the same, and answers for them.
//
// Rings travel by gRPC over the servers' TLS connections and never by gossip, so that a server whose keys are out of date,
// which therefore hears no gossip, still can be taught. The primary's leader alone makes new rings, one after another; it
// has the newest one before it does, as far as anybody has it who can be reached. Every other server takes what is newer
// than its own (keyring_sync.go). A ring is sealed under its own keys: a certificate alone does not give it away.
type keyring struct {
	pb.UnimplementedKeyringServiceServer
	cfg    Config
	keys   *gossip.KeyringStore // nil: gossip is not encrypted
	lan    *gossip.Pool
	wan    *gossip.Pool
	peers  func() ([]string, error) // Raft's
	book   *wanfed.SharedAddressBook
	dialer *wanfed.Dialer
	conns  *dcrpc.Client
	logger *slog.Logger
	turn   chan struct{} // holds one token: whoever has it makes a new ring

	mu   sync.Mutex
	told map[string]string // server → what was logged of its keys
}

const notEncrypted = "gossip is not encrypted at %s: to begin, start every server with --encrypt-file; " +
	"how to do so without a break is told by: wanfed keyring --help"

// Change implements pb.KeyringServiceServer.
func (k *keyring) Change(ctx context.Context, req *pb.ChangeKeyringRequest) (*pb.KeyringReport, error) {
	who, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case k.cfg.DC != k.cfg.PrimaryDC:
		return nil, status.Errorf(codes.FailedPrecondition,
			"%s is not the primary: the keyring is changed in %s; call a server there, directly or through a gateway", k.cfg.DC, k.cfg.PrimaryDC)
	case k.keys == nil:
		return nil, status.Errorf(codes.FailedPrecondition, notEncrypted, k.name())
	}
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	servers := k.ask(ctx) // and have the newest ring thereafter
	before := k.keys.Current()
	next, key, err := changed(before, req)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if behind := leftBehind(req.Op, key, before, servers); len(behind) > 0 && !req.Force {
		return k.report(servers, before, refusal(req.Op, key, behind, len(servers))), nil
	}
	now, err := k.keys.Update(func(r gossip.Keyring) (gossip.Keyring, error) {
		if r.Version != before.Version {
			return r, errors.New("the keyring was changed meanwhile, at another server; try again")
		}
		return next, nil
	})
	if err != nil {
		return nil, status.Error(codes.Aborted, err.Error())
	}
	if now.Version == before.Version {
		return k.report(servers, now, ""), nil // they were taught by being asked
	}
	k.logger.Info("gossip keyring changed by an operator", "peer", who.String(), "op", verbOf(req.Op), "key", key.Fingerprint(),
		"version", now.Version, "force", req.Force)
	out := k.report(k.ask(ctx), now, "")
	out.Changed = true
	return out, nil
}

// changed makes the ring that req asks for.
func changed(r gossip.Keyring, req *pb.ChangeKeyringRequest) (next gossip.Keyring, key gossip.Key, err error) {
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
		err = fmt.Errorf("op is %v: not install, not use, not remove", req.Op)
	}
	return next, key, err
}

func verbOf(op pb.ChangeKeyringRequest_Op) string {
	return strings.ToLower(strings.TrimPrefix(op.String(), "OP_"))
}

// leftBehind lists the servers that a change would cut off. To use a key, every server that is alive must have it. To remove
// one, every server that is known, alive or not, must use the primary: one that has missed the change of the primary
// still shares the old key with the others, and is taught by it when it comes back. Later it would share none.
func leftBehind(op pb.ChangeKeyringRequest_Op, key gossip.Key, r gossip.Keyring, servers []*pb.ServerKeyring) (behind []*pb.ServerKeyring) {
	for _, s := range servers {
		bad := false
		switch op {
		case pb.ChangeKeyringRequest_OP_USE:
			bad = !slices.Contains(s.Fingerprints, key.Fingerprint()) && (s.Error == "" || s.Member == gossip.StatusAlive.String())
		case pb.ChangeKeyringRequest_OP_REMOVE:
			bad = s.Error != "" || !slices.Equal(firstOf(s.Fingerprints), firstOf(r.Fingerprints()))
		}
		if bad {
			behind = append(behind, s)
		}
	}
	return behind
}

func firstOf(s []string) []string { return s[:min(len(s), 1)] }

func refusal(op pb.ChangeKeyringRequest_Op, key gossip.Key, behind []*pb.ServerKeyring, of int) string {
	const shown = 5
	var names []string
	for _, s := range behind[:min(len(behind), shown)] {
		names = append(names, s.Node+"."+s.Datacenter)
	}
	if len(behind) > shown {
		names = append(names, "...")
	}
	who := fmt.Sprintf("%d of %d servers (%s)", len(behind), of, strings.Join(names, ", "))
	if op == pb.ChangeKeyringRequest_OP_REMOVE {
		return fmt.Sprintf("key %s is not removed: %s may still need it to be taught the others; wait until they are back, or cut them off with --force", key, who)
	}
	return fmt.Sprintf("key %s is not used: %s have not got it; install it again when they answer, or cut them off with --force", key, who)
}

// List implements pb.KeyringServiceServer.
func (k *keyring) List(ctx context.Context, req *pb.ListKeyringRequest) (*pb.KeyringReport, error) {
	servers := k.ask(ctx)
	if k.keys == nil {
		return &pb.KeyringReport{Servers: servers}, nil
	}
	r := k.keys.Current()
	out := k.report(servers, r, "")
	if req.ShowKeys {
		for _, key := range r.Keys {
			out.Keys = append(out.Keys, key.Base64())
		}
	}
	return out, nil
}

func (k *keyring) report(servers []*pb.ServerKeyring, r gossip.Keyring, refused string) *pb.KeyringReport {
	return &pb.KeyringReport{Servers: servers, Version: r.Version, Fingerprints: r.Fingerprints(), Refused: refused}
}

// Give implements pb.KeyringServiceServer. The ring counts as never changed by the federation thereafter, so that any that
// was, and has the key too, takes its place.
func (k *keyring) Give(ctx context.Context, req *pb.GiveKeyRequest) (*pb.ServerKeyring, error) {
	who, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	if k.keys == nil {
		return nil, status.Errorf(codes.FailedPrecondition, notEncrypted, k.name())
	}
	key, err := gossip.ParseKey(req.Key)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	_, err = k.keys.Update(func(r gossip.Keyring) (gossip.Keyring, error) {
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
	k.logger.Info("gossip key given to this server by an operator", "peer", who.String(), "key", key.Fingerprint())
	return k.self(), nil
}

// Exchange implements pb.KeyringServiceServer.
func (k *keyring) Exchange(ctx context.Context, req *pb.ExchangeKeyringRequest) (*pb.ExchangeKeyringResponse, error) {
	who, err := rpc.Peer(ctx)
	if err != nil {
		return nil, err
	}
	resp := &pb.ExchangeKeyringResponse{}
	if k.keys != nil {
		k.take(req.Sealed)
		if r := k.keys.Current(); gossip.KeyringSupersedes(r.Version, r.Fingerprints(), req.Version, req.Fingerprints) {
			sealed, err := r.Encrypt(req.Fingerprints)
			if err == nil && len(req.Fingerprints) > 0 && len(sealed) > 0 {
				resp.Sealed = &pb.SealedKeyring{Fingerprint: sealed[0].Fingerprint, Box: sealed[0].Ciphertext}
			}
		}
	}
	k.compare(&pb.ServerKeyring{
		Datacenter: who.DC, Node: who.Node, Fingerprints: req.Fingerprints, AcceptsPlain: req.AcceptsPlain, SendsPlain: req.SendsPlain,
	})
	if req.Datacenter {
		resp.Servers = k.askHere(ctx, req.Sealed)
	} else {
		resp.Servers = []*pb.ServerKeyring{k.self()}
	}
	return resp, nil
}

// take takes a ring that another server sent, if it is newer and can be opened.
func (k *keyring) take(sealed []*pb.SealedKeyring) {
	if k.keys == nil || len(sealed) == 0 || len(sealed) > 2*gossip.MaxKeys {
		return
	}
	boxes := make([]gossip.EncryptedKeyring, len(sealed))
	for i, s := range sealed {
		boxes[i] = gossip.EncryptedKeyring{Fingerprint: s.GetFingerprint(), Ciphertext: s.GetBox()}
	}
	if _, err := k.keys.AcceptNewer(boxes); err != nil && !errors.Is(err, gossip.ErrNoSharedKey) {
		k.logger.Warn("taking a newer gossip keyring", "err", err)
	}
}

func (k *keyring) name() string { return federation.WANName(k.cfg.Node, k.cfg.DC) }

// self is what this server says of its own ring.
func (k *keyring) self() *pb.ServerKeyring {
	out := &pb.ServerKeyring{Datacenter: k.cfg.DC, Node: k.cfg.Node, AcceptsPlain: true, SendsPlain: true}
	if k.keys != nil {
		r := k.keys.Current()
		out.Version, out.Fingerprints = r.Version, r.Fingerprints()
		out.AcceptsPlain, out.SendsPlain = k.cfg.GossipAcceptPlain, k.cfg.GossipSendPlain
	}
	return out
}
