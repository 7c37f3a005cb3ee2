// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// Verb is an action on a resource, for Registration.Authorize.
type Verb string

// A watch needs VerbList. A dry run needs VerbWrite.
const (
	VerbRead        Verb = "read"
	VerbList        Verb = "list"
	VerbWrite       Verb = "write"
	VerbWriteStatus Verb = "write the status of"
	VerbDelete      Verb = "delete"
)

// Scope defines the parts of the tenancy that resources of a type have.
type Scope int

const (
	ScopeNamespace Scope = iota // partition and namespace
	ScopePartition              // partition only
	ScopeCluster                // neither partition nor namespace
)

func (s Scope) String() string {
	return [...]string{"namespace", "partition", "cluster"}[s]
}

// Registration describes a type of resource. Its functions may be called from
// any goroutine. They must not block and must not keep the resource.
type Registration struct {
	// Type has a group and a group version (lower case), and a Kind. Required.
	Type *pb.Type
	// Message is any value of the message type of the data. Required.
	Message proto.Message
	// Scope defaults to ScopeNamespace.
	Scope Scope
	// Federated types are written in the primary and replicated to secondaries.
	Federated bool
	// CheckName returns an ErrInvalid for an invalid name. The default is the
	// function CheckName. CheckName must not allow names that CheckUTF8Name
	// rejects. All versions of a type must have the same CheckName, because
	// they share names.
	CheckName func(name string) error
	// Mutate changes a resource before a write, for example to set defaults.
	Mutate func(r *pb.Resource) error
	// CheckJSON returns the reason why the JSON of the data is too large to be
	// decoded, or nil. It must be much cheaper than decoding. Nil: no check.
	CheckJSON func(data []byte) error
	// Validate checks a resource after Mutate. The resource has a valid name
	// and data of the right message type. Nil: no check.
	Validate func(r *pb.Resource) error
	// Authorize returns the reason why p may not use verb on r, or nil. It
	// refuses more than ServiceConfig.Decide, and permits nothing that Decide
	// refuses. p is the caller, also of a request that another datacenter has
	// forwarded. For VerbWrite, r is the request's resource after Mutate. For
	// VerbDelete and VerbWriteStatus, r is the stored resource, or has only the
	// id if no resource is stored. For VerbRead, r has only the id. For
	// VerbList, r has only an id without a name. Nil: no further refusal.
	Authorize func(p tlsutil.Peer, verb Verb, r *pb.Resource) error
}

// NewMessage returns an empty message of the data of the type.
func (reg Registration) NewMessage() proto.Message {
	return reg.Message.ProtoReflect().New().Interface()
}

// Registry holds the registered types. A Registry is safe for concurrent use.
type Registry struct {
	mu    sync.RWMutex
	types map[string]Registration // by TypeString
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{types: make(map[string]Registration)}
}

// Register adds a type. Register fails if the type is already registered, or if
// another version of the type has a different Scope or Federated. The error
// names all invalid fields of reg.
func (g *Registry) Register(reg Registration) error {
	var faults []error
	if err := checkType(reg.Type); err != nil {
		faults = append(faults, err)
	}
	if reg.Message == nil {
		faults = append(faults, fmt.Errorf("%w message: must be a value of the data's type, not nil", ErrInvalid))
	}
	if reg.Scope < ScopeNamespace || reg.Scope > ScopeCluster {
		faults = append(faults, fmt.Errorf("%w scope %d: must be ScopeNamespace, ScopePartition or ScopeCluster",
			ErrInvalid, int(reg.Scope)))
	}
	if len(faults) > 0 {
		return fmt.Errorf("register type %s: %w", TypeString(reg.Type), errors.Join(faults...))
	}
	reg.Type = proto.CloneOf(reg.Type)

	g.mu.Lock()
	defer g.mu.Unlock()
	key := TypeString(reg.Type)
	if _, ok := g.types[key]; ok {
		return fmt.Errorf("register type %s: it is registered already", key)
	}
	for name, other := range g.types { // all versions of a type share names
		if other.Type.Group == reg.Type.Group && other.Type.Kind == reg.Type.Kind &&
			(other.Scope != reg.Scope || other.Federated != reg.Federated) {
			return fmt.Errorf("register type %s: %w scope %q, federated %t: must be as %s has it, %q and %t",
				key, ErrInvalid, reg.Scope, reg.Federated, name, other.Scope, other.Federated)
		}
	}
	g.types[key] = reg
	return nil
}

// Lookup returns the registration of a type, or an ErrInvalid.
func (g *Registry) Lookup(typ *pb.Type) (Registration, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	reg, ok := g.types[TypeString(typ)]
	if !ok {
		known := strings.Join(slices.Sorted(maps.Keys(g.types)), ", ")
		return Registration{}, invalidField("type", TypeString(typ), "is not registered; known are "+known)
	}
	return reg, nil
}

// Types returns all registrations, ordered by TypeString.
func (g *Registry) Types() []Registration {
	g.mu.RLock()
	defer g.mu.RUnlock()
	all := make([]Registration, 0, len(g.types))
	for _, name := range slices.Sorted(maps.Keys(g.types)) {
		all = append(all, g.types[name])
	}
	return all
}
