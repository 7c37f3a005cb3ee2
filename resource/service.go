// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// ConsistencyKey is the gRPC metadata key by which a client chooses how fresh a Read, List or ListByOwner must be. Its values
// are "consistent" (Strong) and "stale" (Eventual); without it a read is eventual. Clients of Consul use ConsulConsistencyKey.
const (
	ConsistencyKey       = "x-wanfed-consistency"
	ConsulConsistencyKey = "x-consul-consistency-mode"
)

// ServiceConfig says what a Service works with.
type ServiceConfig struct {
	// Backend keeps the resources, Registry knows their types. Required.
	Backend  Backend
	Registry *Registry
	// DC is the datacenter of this server. Required: what a peer may do by default depends on whether it is of it.
	DC string
	// Peer says who calls. Required. Its error refuses the call.
	Peer func(ctx context.Context) (tlsutil.Peer, error)
	// Primary says whether this datacenter is the primary now. Required.
	Primary func() bool
	// PrimaryDC is the primary's name, for texts.
	PrimaryDC string
	// PrimaryClient returns a client of the primary's resource service, that calls for whom Peer finds in the context. In a
	// secondary, Write, Delete and MutateAndValidate of federated types are forwarded to it, once the caller may do it here too.
	// The answer waits, for a second at most, until what was written is stored here. Nil: they are refused with ErrFederated.
	PrimaryClient func() (pb.ResourceServiceClient, error)
	// Logger. Default: slog.Default().
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

// Service is the gRPC ResourceService over a Backend. Every method checks the request, asks the type's registration whether
// the peer may, and answers in the errors of StatusError. It may be used from any goroutine and has nothing to close.
type Service struct {
	pb.UnimplementedResourceServiceServer
	cfg ServiceConfig
	log *slog.Logger
}

var _ pb.ResourceServiceServer = (*Service)(nil)

// NewService checks cfg and names everything that is missing.
func NewService(cfg ServiceConfig) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, log: cfg.Logger}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// admit finds out who calls and what the type demands.
func (s *Service) admit(ctx context.Context, typ *pb.Type) (tlsutil.Peer, Registration, error) {
	peer, err := s.cfg.Peer(ctx)
	if err != nil {
		return peer, Registration{}, fmt.Errorf("%w: %w", ErrDenied, err)
	}
	reg, err := s.cfg.Registry.Lookup(typ)
	return peer, reg, err
}

func (s *Service) authorize(reg Registration, p tlsutil.Peer, verb Verb, r *pb.Resource) error {
	check := reg.Authorize
	if check == nil {
		check = s.authorizeByDefault
	}
	if err := check(p, verb, r); err != nil {
		s.log.Debug("resource request refused", "peer", p.String(), "verb", string(verb), "type", TypeString(reg.Type), "err", err)
		return fmt.Errorf("%w: %v may not %s %s: %w", ErrDenied, p, verb, TypeString(reg.Type), err)
	}
	return nil
}

// authorizeByDefault lets operators do everything, wherever they are of: gRPC calls that other datacenters make for theirs are
// admitted before, or not. Servers do everything in their own datacenter, and read elsewhere; all others read in their own.
func (s *Service) authorizeByDefault(p tlsutil.Peer, verb Verb, _ *pb.Resource) error {
	own, server := p.DC == s.cfg.DC, p.Role == tlsutil.RoleServer
	reads := verb == VerbRead || verb == VerbList
	switch {
	case p.Role == tlsutil.RoleOperator, own && server, reads && (own || server):
		return nil
	case reads:
		return fmt.Errorf("only servers and cli certificates may from outside datacenter %s", s.cfg.DC)
	default:
		return fmt.Errorf("only cli certificates, and servers of datacenter %s, may", s.cfg.DC)
	}
}

// checkWritable refuses writes of a federated type outside the primary.
func (s *Service) checkWritable(reg Registration) error {
	if reg.Federated && !s.cfg.Primary() {
		return fmt.Errorf("%s is federated: %w", TypeString(reg.Type), ErrFederated)
	}
	return nil
}

// checkRequestID checks an id that a client sent and returns it with the tenancy that its type's scope makes of it.
func checkRequestID(reg Registration, id *pb.ID) (*pb.ID, error) {
	if id == nil {
		return nil, fmt.Errorf("%w id: it is missing", ErrInvalid)
	}
	if err := reg.checkName(id.GetName()); err != nil {
		return nil, err
	}
	tenancy, err := scoped(reg.Scope, id.GetTenancy(), false)
	if err != nil {
		return nil, err
	}
	return &pb.ID{Uid: id.GetUid(), Name: id.GetName(), Type: proto.CloneOf(id.GetType()), Tenancy: tenancy}, nil
}

// consistencyOf reads what the client asks for.
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

// WithConsistency returns a context for client calls that ask for c.
func WithConsistency(ctx context.Context, c Consistency) context.Context {
	v := "stale"
	if c == Strong {
		v = "consistent"
	}
	return metadata.AppendToOutgoingContext(ctx, ConsistencyKey, v)
}
