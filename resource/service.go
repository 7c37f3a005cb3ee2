// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc/metadata"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// ConsistencyKey is the gRPC metadata key for the consistency of a Read,
	// List or ListByOwner. The value "consistent" requests Strong. The value
	// "stale" requests Eventual, which is the default.
	ConsistencyKey = "x-wanfed-consistency"
	// ConsulConsistencyKey is the same key for clients of Consul.
	ConsulConsistencyKey = "x-consul-consistency-mode"
)

// ServiceConfig configures a Service.
type ServiceConfig struct {
	// Backend stores the resources. Required.
	Backend Backend
	// Registry has the registered types. Required.
	Registry *Registry
	// DC is the datacenter of this server. The default authorization compares
	// the datacenter of a peer with DC. Required.
	DC string
	// Peer returns the caller. If Peer fails, the call is denied. Required.
	Peer func(ctx context.Context) (tlsutil.Peer, error)
	// Decide returns an ErrDenied, or nil if the caller of ctx may do a. The
	// type's Authorize may refuse more. Nil: the rules of authorizeByDefault,
	// for tests.
	Decide func(ctx context.Context, a Access) error
	// Primary reports whether this datacenter is the primary now. Required.
	Primary func() bool
	// PrimaryDC is the name of the primary, for errors.
	PrimaryDC string
	// PrimaryClient returns a client of the primary's resource service, which
	// passes on the identity of the caller. A secondary authorizes Write,
	// Delete and MutateAndValidate of federated types and forwards them to the
	// primary. The response waits up to a second until the replica is stored.
	// Nil: in a secondary, these calls fail with ErrFederated.
	PrimaryClient func() (pb.ResourceServiceClient, error)
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Service is the gRPC ResourceService over a Backend. Every gRPC method checks
// and authorizes the request by the type's Registration, and returns errors of
// StatusError. A Service is safe for concurrent use and needs no Close.
type Service struct {
	pb.UnimplementedResourceServiceServer
	cfg ServiceConfig
	log *slog.Logger
}

var _ pb.ResourceServiceServer = (*Service)(nil)

// NewService returns a Service, or an error if a required field is missing.
func NewService(cfg ServiceConfig) (*Service, error) {
	switch {
	case cfg.Backend == nil:
		return nil, errors.New("resource: ServiceConfig.Backend is required")
	case cfg.Registry == nil:
		return nil, errors.New("resource: ServiceConfig.Registry is required")
	case cfg.DC == "":
		return nil, errors.New("resource: ServiceConfig.DC is required")
	case cfg.Peer == nil:
		return nil, errors.New("resource: ServiceConfig.Peer is required")
	case cfg.Primary == nil:
		return nil, errors.New("resource: ServiceConfig.Primary is required")
	}
	return &Service{cfg: cfg, log: cmp.Or(cfg.Logger, slog.Default())}, nil
}

// admit returns the caller and the registration of the type.
func (s *Service) admit(ctx context.Context, typ *pb.Type) (tlsutil.Peer, Registration, error) {
	peer, err := s.cfg.Peer(ctx)
	if err != nil {
		return peer, Registration{}, fmt.Errorf("%w: %w", ErrDenied, err)
	}
	reg, err := s.cfg.Registry.Lookup(typ)
	return peer, reg, err
}

// admitID is admit for one resource. It also returns the id with its tenancy.
func (s *Service) admitID(ctx context.Context, given *pb.ID) (tlsutil.Peer, Registration, *pb.ID, error) {
	peer, reg, err := s.admit(ctx, given.GetType())
	if err != nil {
		return peer, reg, nil, err
	}
	id, err := checkRequestID(reg, given)
	return peer, reg, id, err
}

// Access is what a caller wants to do with resources.
type Access struct {
	Verb Verb
	Type *pb.Type
	// Name is the name of the resource. For VerbList it is the beginning of all
	// names in the result.
	Name string
	// Federated reports whether the type is federated.
	Federated bool
}

// authorize returns an ErrDenied unless p, the caller of ctx, may use verb on
// the resources with the name, or for VerbList with the prefix. r is the
// argument of the type's Authorize.
func (s *Service) authorize(
	ctx context.Context, reg Registration, p tlsutil.Peer, verb Verb, name string, r *pb.Resource,
) error {
	if s.cfg.Decide != nil {
		err := s.cfg.Decide(ctx, Access{Verb: verb, Type: reg.Type, Name: name, Federated: reg.Federated})
		if err != nil {
			s.log.Debug("resource request denied", "err", err)
			return err
		}
	}
	check := reg.Authorize
	switch {
	case check != nil:
	case s.cfg.Decide != nil:
		return nil
	default:
		check = s.authorizeByDefault
	}
	if err := check(p, verb, r); err != nil {
		s.log.Debug("resource request denied",
			"peer", p.String(), "verb", string(verb), "type", TypeString(reg.Type), "err", err)
		return fmt.Errorf("%w: %v may not %s %s: %w", ErrDenied, p, verb, TypeString(reg.Type), err)
	}
	return nil
}

// authorizeByDefault allows every verb to operators, and to servers of this
// datacenter. Servers of other datacenters, and all other peers of this
// datacenter, may read and list. It applies only without ServiceConfig.Decide.
func (s *Service) authorizeByDefault(p tlsutil.Peer, verb Verb, _ *pb.Resource) error {
	local, server := p.DC == s.cfg.DC, p.Role == tlsutil.RoleServer
	reads := verb == VerbRead || verb == VerbList
	switch {
	case p.Role == tlsutil.RoleOperator, local && server, reads && (local || server):
		return nil
	case reads:
		return fmt.Errorf("only servers and operators may from outside datacenter %s", s.cfg.DC)
	default:
		return fmt.Errorf("only operators, and servers of datacenter %s, may", s.cfg.DC)
	}
}

// Allow returns an ErrDenied if the caller of ctx may not use verb on the
// resource of a type with the name, or for VerbList on those whose names begin
// with it. Server code that calls the Backend directly calls Allow first. The
// type's Authorize must ignore the argument r except its id.
func (s *Service) Allow(ctx context.Context, verb Verb, typ *pb.Type, name string) error {
	peer, reg, err := s.admit(ctx, typ)
	if err != nil {
		return err
	}
	return s.authorize(ctx, reg, peer, verb, name, &pb.Resource{Id: &pb.ID{Type: typ, Name: name}})
}

// allowQuery returns an ErrDenied if the caller of ctx may not read what q
// selects.
func (s *Service) allowQuery(ctx context.Context, q Query) error {
	if q.Name != "" {
		return s.Allow(ctx, VerbRead, q.Type, q.Name)
	}
	return s.Allow(ctx, VerbList, q.Type, q.Prefix)
}

// checkWritable refuses writes of a federated type outside the primary.
func (s *Service) checkWritable(reg Registration) error {
	if reg.Federated && !s.cfg.Primary() {
		return fmt.Errorf("%s is federated: %w", TypeString(reg.Type), ErrFederated)
	}
	return nil
}

// checkRequestID checks the id of a request, and returns a copy with the
// tenancy that the type's scope requires.
func checkRequestID(reg Registration, id *pb.ID) (*pb.ID, error) {
	if id == nil {
		return nil, fmt.Errorf("%w id: it is missing", ErrInvalid)
	}
	if err := reg.checkName(id.GetName()); err != nil {
		return nil, err
	}
	tenancy, err := scopedTenancy(reg.Scope, id.GetTenancy(), false)
	if err != nil {
		return nil, err
	}
	return &pb.ID{Uid: id.GetUid(), Name: id.GetName(), Type: reg.Type, Tenancy: tenancy}, nil
}

// consistencyOf returns the consistency that the client requests.
func consistencyOf(ctx context.Context) (Consistency, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, key := range []string{ConsistencyKey, ConsulConsistencyKey} {
		values := md.Get(key)
		if len(values) == 0 {
			continue
		}
		switch v := values[len(values)-1]; v {
		case "consistent":
			return Strong, nil
		case "stale":
			return Eventual, nil
		default:
			return Eventual, invalidField(key, v, `must be "consistent" or "stale"`)
		}
	}
	return Eventual, nil
}

// WithConsistency returns a context for client calls that request c.
func WithConsistency(ctx context.Context, c Consistency) context.Context {
	v := "stale"
	if c == Strong {
		v = "consistent"
	}
	return metadata.AppendToOutgoingContext(ctx, ConsistencyKey, v)
}
