// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// Verb is what a peer wants to do with a resource.
type Verb string

// The verbs that Registration.Authorize is asked about. Watching is listing, a dry run is writing.
const (
	VerbRead        Verb = "read"
	VerbList        Verb = "list"
	VerbWrite       Verb = "write"
	VerbWriteStatus Verb = "write the status of"
	VerbDelete      Verb = "delete"
)

// Scope says which parts a type's tenancy has.
type Scope int

// The scopes. What lies outside a type's scope is empty in its resources' tenancy.
const (
	ScopeNamespace Scope = iota // partition and namespace
	ScopePartition              // partition alone
	ScopeCluster                // neither
)

func (s Scope) String() string {
	return [...]string{"namespace", "partition", "cluster"}[s]
}

// Registration says what a type of resource demands. Its functions are called from any goroutine, must not block and must
// not keep the resource.
type Registration struct {
	// Type is group (lower case), group version and Kind. Required.
	Type *pb.Type
	// Message is a value of the type that data must have; its content does not matter. Required.
	Message proto.Message
	// Scope is where its resources live. Default: in a namespace.
	Scope Scope
	// Federated: only the primary stores what is written; every secondary has a replica.
	Federated bool
	// CheckName says what is wrong with a name, as an ErrInvalid. Nil: package CheckName is the rule. Whatever it allows
	// must be allowed by CheckFreeName, which is a rule by itself. All versions of a group's kind share names, and so the rule.
	CheckName func(name string) error
	// Mutate changes a resource about to be written, for example sets defaults in its data. Nil: nothing.
	Mutate func(r *pb.Resource) error
	// Validate says what is wrong with a resource about to be written, after Mutate. Nil: nothing is. It is given a
	// resource whose name and type of data are right.
	Validate func(r *pb.Resource) error
	// Authorize says why p may not do verb. For VerbWrite r is what the client sent, mutated; for VerbDelete and
	// VerbWriteStatus what is stored, if it is; for VerbRead and VerbList only its id is there, for VerbList without a name. Nil: operators (cli)
	// may do everything, servers too in the own datacenter; others of it, and servers of others, may read and list.
	Authorize func(p tlsutil.Peer, verb Verb, r *pb.Resource) error
}

// Registry knows the types of resources. It is filled when the program is assembled; it may be used from any goroutine.
type Registry struct {
	mu    sync.RWMutex
	types map[string]Registration // by TypeString
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{types: make(map[string]Registration)}
}

// Register adds a type. It fails for one that is there already, for one of another scope than another version of the same
// group and kind, and for a registration with faults: all are named.
func (g *Registry) Register(reg Registration) error {
	var faults []error
	if err := checkType(reg.Type); err != nil {
		faults = append(faults, err)
	}
	if reg.Message == nil {
		faults = append(faults, fmt.Errorf("%w message: must be a value of the data's type, not nil", ErrInvalid))
	}
	if reg.Scope < ScopeNamespace || reg.Scope > ScopeCluster {
		faults = append(faults, fmt.Errorf("%w scope %d: must be ScopeNamespace, ScopePartition or ScopeCluster", ErrInvalid, int(reg.Scope)))
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
	for name, other := range g.types { // versions share names, and so must live in the same place
		if other.Type.Group == reg.Type.Group && other.Type.Kind == reg.Type.Kind && (other.Scope != reg.Scope || other.Federated != reg.Federated) {
			return fmt.Errorf("register type %s: %w scope %q, federated %t: must be as %s has it, %q and %t",
				key, ErrInvalid, reg.Scope, reg.Federated, name, other.Scope, other.Federated)
		}
	}
	g.types[key] = reg
	return nil
}

// Lookup returns the registration of a type, or an ErrInvalid that lists the known types.
func (g *Registry) Lookup(typ *pb.Type) (Registration, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	reg, ok := g.types[TypeString(typ)]
	if !ok {
		return Registration{}, invalidField("type", TypeString(typ), "is not registered; known are "+strings.Join(g.namesLocked(), ", "))
	}
	return reg, nil
}

// Types returns every registration, ordered by TypeString.
func (g *Registry) Types() []Registration {
	g.mu.RLock()
	defer g.mu.RUnlock()
	all := make([]Registration, 0, len(g.types))
	for _, name := range g.namesLocked() {
		all = append(all, g.types[name])
	}
	return all
}

func (g *Registry) namesLocked() []string {
	names := make([]string, 0, len(g.types))
	for name := range g.types {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
