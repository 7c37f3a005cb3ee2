// SPDX-License-Identifier: MPL-2.0

package revocation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Type is the type of revocation lists.
var Type = &pb.Type{Group: "tls", GroupVersion: "v1", Kind: "RevocationList"}

// Register adds Type to a registry, with the default authorization. The CAs and
// the lists of id decide which lists may be written.
func Register(g *resource.Registry, id *tlsutil.Identity) error {
	return g.Register(resource.Registration{
		Type: Type, Message: &pb.RevocationList{}, Scope: resource.ScopeCluster, Federated: true,
		Validate: func(r *pb.Resource) error {
			list, err := resource.Decode[*pb.RevocationList](r)
			if err != nil {
				return err
			}
			l, err := id.CheckRevocations([]byte(list.Pem))
			if err != nil {
				return fmt.Errorf("data.pem: %w", err)
			}
			if r.GetId().GetName() != l.ID() {
				return fmt.Errorf("name %q: must be %q, which identifies the CA that signed the list",
					r.GetId().GetName(), l.ID())
			}
			return nil
		},
	})
}

// Load puts the lists of a file of Run in force. The file may be absent.
func Load(file string, id *tlsutil.Identity) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read revocation lists: %w", err)
	}
	// A list of a CA that is no longer trusted has no effect.
	_ = id.AddRevocations(b)
	return nil
}

// Config configures Run.
type Config struct {
	Backend  resource.Backend  // required
	Identity *tlsutil.Identity // required
	// File keeps the lists in force for Load. Required.
	File   string
	Logger *slog.Logger // required
}

// Run puts the lists of the store in force, and saves all lists in force, until
// ctx ends. It returns nil.
func Run(ctx context.Context, cfg Config) error {
	wake := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		resource.Notify(ctx, cfg.Backend, resource.Query{Type: Type}, wake)
	}()
	defer func() { <-done }()
	reported := map[string]string{} // last error by the name of the resource
	var saved []byte
	for {
		// A reload may trust the CA of a list that was refused before.
		reloaded, lists := cfg.Identity.Changed(), cfg.Identity.RevocationsChanged()
		resources, _, err := cfg.Backend.List(ctx, resource.Eventual, resource.Query{Type: Type})
		if err != nil && ctx.Err() == nil {
			cfg.Logger.Warn("cannot read revocation lists", "err", err)
		}
		for _, r := range resources {
			name, text := r.GetId().GetName(), ""
			if err := Apply(cfg.Identity, r); err != nil {
				text = err.Error()
			}
			if text != "" && reported[name] != text {
				cfg.Logger.Warn("revocation list ignored", "name", name, "err", text)
			}
			reported[name] = text
		}
		if b := pemOf(cfg.Identity.RevocationLists()); !bytes.Equal(b, saved) {
			if err := atomicfile.WriteFile(cfg.File, b, 0o600); err != nil {
				cfg.Logger.Error("cannot save revocation lists", "err", err)
			} else {
				saved = b
			}
		}
		select {
		case <-wake:
		case <-reloaded:
		case <-lists:
		case <-ctx.Done():
			return nil
		}
	}
}

// Apply puts the list of a resource in force, unless a newer one is.
func Apply(id *tlsutil.Identity, r *pb.Resource) error {
	list, err := resource.Decode[*pb.RevocationList](r)
	if err != nil {
		return err
	}
	return id.AddRevocations([]byte(list.Pem))
}

func pemOf(lists []*tlsutil.RevocationList) []byte {
	var b []byte
	for _, l := range lists {
		b = append(b, l.PEM()...)
	}
	return b
}

// AddTo returns a snapshot for gateways with the lists in force. It does not
// change s.
func AddTo(s *pb.GatewaySnapshot, id *tlsutil.Identity) *pb.GatewaySnapshot {
	lists := id.RevocationLists()
	if s == nil || len(lists) == 0 {
		return s
	}
	out := &pb.GatewaySnapshot{
		Datacenter: s.Datacenter, Domain: s.Domain, Servers: s.Servers, Datacenters: s.Datacenters,
	}
	for _, l := range lists {
		out.RevocationLists = append(out.RevocationLists, string(l.PEM()))
	}
	return out
}
