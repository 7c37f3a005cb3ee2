// SPDX-License-Identifier: MPL-2.0

package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Type is the type of the trusted CAs.
var Type = &pb.Type{Group: "tls", GroupVersion: "v1", Kind: "Trust"}

// Name is the name of the only resource.
const Name = "trust"

// retryInterval is the time between two attempts to apply the resource.
const retryInterval = 10 * time.Second

// Register adds Type to a registry. The CAs of id decide what may be written.
// Only operators write: a server of any datacenter could otherwise delete the
// resource.
func Register(g *resource.Registry, id *tlsutil.Identity) error {
	return g.Register(resource.Registration{
		Type: Type, Message: &pb.Trust{}, Scope: resource.ScopeCluster, Federated: true,
		Validate: func(r *pb.Resource) error {
			t, err := resource.Decode[*pb.Trust](r)
			if err != nil {
				return err
			}
			if name := r.GetId().GetName(); name != Name {
				return fmt.Errorf("name %q: must be %q", name, Name)
			}
			if _, err := id.CheckTrust(Signed(t)); err != nil {
				return fmt.Errorf("data: %w", err)
			}
			return nil
		},
		Authorize: func(p tlsutil.Peer, verb resource.Verb, _ *pb.Resource) error {
			if verb != resource.VerbRead && verb != resource.VerbList && p.Role != tlsutil.RoleOperator {
				return errors.New("only operators change the trusted CAs: see wanfed tls ca rotate")
			}
			return nil
		},
	})
}

// Signed returns the content of a message.
func Signed(t *pb.Trust) tlsutil.SignedTrust {
	return tlsutil.SignedTrust{Content: []byte(t.GetContent()), Signatures: t.GetSignatures()}
}

// Message returns s as a message.
func Message(s tlsutil.SignedTrust) *pb.Trust {
	return &pb.Trust{Content: string(s.Content), Signatures: s.Signatures}
}

// Config configures Run. All fields are required.
type Config struct {
	Backend  resource.Backend
	Identity *tlsutil.Identity
	Logger   *slog.Logger
}

// Run applies the resource of the store after each change, until ctx ends. It
// returns nil.
func Run(ctx context.Context, cfg Config) error {
	wake := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		resource.Notify(ctx, cfg.Backend, resource.Query{Type: Type}, wake)
	}()
	defer func() { <-done }()
	reported := ""
	for {
		text, changed := "", cfg.Identity.Changed()
		var retry <-chan time.Time
		if err := apply(ctx, cfg); err != nil && ctx.Err() == nil {
			text, retry = err.Error(), time.After(retryInterval)
			if text != reported {
				cfg.Logger.Error("cannot apply the trusted CAs", "err", err)
			}
		}
		reported = text
		select {
		case <-wake:
		case <-changed: // the CA file may have been set back
		case <-retry:
		case <-ctx.Done():
			return nil
		}
	}
}

func apply(ctx context.Context, cfg Config) error {
	r, err := cfg.Backend.Read(ctx, resource.Eventual, resource.ID(Type, Name))
	if errors.Is(err, resource.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	t, err := resource.Decode[*pb.Trust](r)
	if err != nil {
		return err
	}
	return cfg.Identity.ApplyTrust(Signed(t))
}

// AddTo returns a snapshot for gateways with the Trust of id. It does not change
// s.
func AddTo(s *pb.GatewaySnapshot, id *tlsutil.Identity) *pb.GatewaySnapshot {
	_, signed, ok := id.Trust()
	if s == nil || !ok {
		return s
	}
	return &pb.GatewaySnapshot{
		Datacenter: s.Datacenter, Domain: s.Domain, Servers: s.Servers, Datacenters: s.Datacenters,
		RevocationLists: s.RevocationLists, Trust: Message(signed),
	}
}

// Content returns the content of a resource, without a verification of its
// signature. Its source must be a server that has verified it.
func Content(r *pb.Resource) (t tlsutil.Trust, _ error) {
	data, err := resource.Decode[*pb.Trust](r)
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal([]byte(data.Content), &t); err != nil {
		return t, fmt.Errorf("trusted CAs: %w", err)
	}
	return t, nil
}
