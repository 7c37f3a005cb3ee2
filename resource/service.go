// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// ConsistencyKey is the gRPC metadata key by which a client selects the
// consistency of a Read, List or ListByOwner: "consistent" for Strong, "stale"
// for Eventual, which is the default. Consul's clients use
// ConsulConsistencyKey.
const (
	ConsistencyKey       = "x-wanfed-consistency"
	ConsulConsistencyKey = "x-consul-consistency-mode"
)

// ServiceConfig configures a Service.
type ServiceConfig struct {
	// Backend stores the resources. Required.
	Backend Backend
	// Registry has the types of resources. Required.
	Registry *Registry
	// DC is the datacenter of this server. The default authorization depends on
	// whether a peer belongs to it. Required.
	DC string
	// Peer returns the caller. An error refuses the call. Required.
	Peer func(ctx context.Context) (tlsutil.Peer, error)
	// Primary reports whether this datacenter is the primary now. Required.
	Primary func() bool
	// PrimaryDC is the name of the primary, for errors.
	PrimaryDC string
	// PrimaryClient returns a client of the primary's resource service. The
	// client must call on behalf of the peer that Peer finds in the context. In
	// a secondary, Write, Delete and MutateAndValidate of federated types are
	// authorized here and then forwarded to the primary. The response waits up
	// to a second until the result is stored here. Nil: these calls fail with
	// ErrFederated in a secondary.
	PrimaryClient func() (pb.ResourceServiceClient, error)
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

func (c *ServiceConfig) validate() error {
	var faults []error
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Backend", c.Backend == nil}, {"Registry", c.Registry == nil}, {"DC", c.DC == ""},
		{"Peer", c.Peer == nil}, {"Primary", c.Primary == nil},
	} {
		if f.missing {
			faults = append(faults, fmt.Errorf("resource service: %s is required", f.name))
		}
	}
	return errors.Join(faults...)
}

// Service is the gRPC ResourceService over a Backend. Every method checks the
// request, checks with the type's registration that the peer is authorized, and
// returns errors of StatusError. A Service is safe for concurrent use and needs
// no Close.
type Service struct {
	pb.UnimplementedResourceServiceServer
	cfg ServiceConfig
	log *slog.Logger
}

var _ pb.ResourceServiceServer = (*Service)(nil)

// NewService returns a Service. It fails if a required field of cfg is missing,
// and names all of them.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
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

// admitID is admit for a request about one resource. It also returns the
// complete id.
func (s *Service) admitID(ctx context.Context, given *pb.ID) (tlsutil.Peer, Registration, *pb.ID, error) {
	peer, reg, err := s.admit(ctx, given.GetType())
	if err != nil {
		return peer, reg, nil, err
	}
	id, err := checkRequestID(reg, given)
	return peer, reg, id, err
}

func (s *Service) authorize(reg Registration, p tlsutil.Peer, verb Verb, r *pb.Resource) error {
	check := reg.Authorize
	if check == nil {
		check = s.authorizeByDefault
	}
	if err := check(p, verb, r); err != nil {
		s.log.Debug("resource request denied",
			"peer", p.String(), "verb", string(verb), "type", TypeString(reg.Type), "err", err)
		return fmt.Errorf("%w: %v may not %s %s: %w", ErrDenied, p, verb, TypeString(reg.Type), err)
	}
	return nil
}

// authorizeByDefault allows operators everything. It allows servers everything
// in their own datacenter, and reads in others. It allows all other peers reads
// in their own datacenter. Calls of operators of other datacenters are
// authorized before they reach this function.
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

// Allow returns an ErrDenied if the caller of ctx may not use verb on resources
// of a type. It is for server code that calls the Backend directly. The type's
// Authorize must depend on the type alone.
func (s *Service) Allow(ctx context.Context, verb Verb, typ *pb.Type) error {
	peer, reg, err := s.admit(ctx, typ)
	if err != nil {
		return err
	}
	return s.authorize(reg, peer, verb, &pb.Resource{Id: &pb.ID{Type: typ}})
}

// checkWritable refuses writes of a federated type outside the primary.
func (s *Service) checkWritable(reg Registration) error {
	if reg.Federated && !s.cfg.Primary() {
		return fmt.Errorf("%s is federated: %w", TypeString(reg.Type), ErrFederated)
	}
	return nil
}

// checkRequestID checks the id of a request and returns it with the tenancy that
// its type's scope requires.
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
	return &pb.ID{Uid: id.GetUid(), Name: id.GetName(), Type: proto.CloneOf(id.GetType()), Tenancy: tenancy}, nil
}

// consistencyOf returns the consistency that the client requests.
func consistencyOf(ctx context.Context) (Consistency, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	key, values := ConsistencyKey, md.Get(ConsistencyKey)
	if len(values) == 0 {
		key, values = ConsulConsistencyKey, md.Get(ConsulConsistencyKey)
	}
	if len(values) == 0 {
		return Eventual, nil
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

// WithConsistency returns a context for client calls that request c.
func WithConsistency(ctx context.Context, c Consistency) context.Context {
	v := "stale"
	if c == Strong {
		v = "consistent"
	}
	return metadata.AppendToOutgoingContext(ctx, ConsistencyKey, v)
}
