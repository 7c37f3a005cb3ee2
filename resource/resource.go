// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
)

// ID returns the id of a resource of the default tenancy, without a uid.
func ID(typ *pb.Type, name string) *pb.ID {
	return &pb.ID{Name: name, Type: typ, Tenancy: FillTenancy(nil)}
}

// New returns a new resource of the default tenancy, with data, a uid and a
// generation. It fails with ErrInvalid for a bad name, and if data cannot be
// encoded. Use NewNamed for a type whose Registration has CheckName.
func New(typ *pb.Type, name string, data proto.Message) (*pb.Resource, error) {
	return NewNamed(typ, name, CheckName, data)
}

// NewNamed is New with check in place of CheckName.
func NewNamed(typ *pb.Type, name string, check func(name string) error, data proto.Message) (*pb.Resource, error) {
	if err := check(name); err != nil {
		return nil, err
	}
	r := &pb.Resource{Id: ID(proto.CloneOf(typ), name)}
	r.Id.Uid = NewUID()
	return r, SetData(r, data)
}

// SetData replaces the data of r and gives r a new generation.
func SetData(r *pb.Resource, data proto.Message) error {
	a, err := anypb.New(data)
	if err != nil {
		return fmt.Errorf("encode data of %s: %w", IDString(r.GetId()), err)
	}
	r.Data, r.Generation = a, NewGeneration()
	return nil
}

// WithData returns a copy of r with other data and a new generation. Commit it
// with PutOp, and r.Version as the expected version.
func WithData(r *pb.Resource, data proto.Message) (*pb.Resource, error) {
	r = proto.CloneOf(r)
	return r, SetData(r, data)
}

// Decode returns the data of r as a new message of type T, for example
// Decode[*pb.FederationState](r). It fails with ErrInvalid if r has data of
// another type, or no data.
func Decode[T proto.Message](r *pb.Resource) (T, error) {
	var zero T
	msg := zero.ProtoReflect().New().Interface().(T)
	if err := decodeInto(r, msg); err != nil {
		return zero, err
	}
	return msg, nil
}

func decodeInto(r *pb.Resource, msg proto.Message) error {
	want := msg.ProtoReflect().Descriptor().FullName()
	if got := r.GetData().MessageName(); got != want {
		return fmt.Errorf("%w data of %s: its type is %q, not %q", ErrInvalid, IDString(r.GetId()), got, want)
	}
	if err := r.GetData().UnmarshalTo(msg); err != nil {
		return fmt.Errorf("%w data of %s: not a %s: %w", ErrInvalid, IDString(r.GetId()), want, err)
	}
	return nil
}

// NewUID returns a uid for a new resource, in the form of a ULID. Its 26
// characters sort by the time of creation, to the millisecond. It has 80 random
// bits.
func NewUID() string { return ulid.MustNew(ulid.Now(), rand.Reader).String() }

// NewGeneration returns a generation for changed data, in the form of NewUID.
func NewGeneration() string { return NewUID() }

// TimeOf returns the time when NewUID or NewGeneration made id, to the
// millisecond. It returns the zero time for other texts.
func TimeOf(id string) time.Time {
	parsed, err := ulid.ParseStrict(id)
	if err != nil {
		return time.Time{}
	}
	return parsed.Timestamp()
}

// Metadata keys that every Backend interprets. Both are Consul's.
const (
	// FinalizersKey holds names separated by spaces. Each name represents a
	// program that must clean up before the resource is deleted.
	FinalizersKey = "finalizers"
	// DeletionKey holds the time (RFC 3339, UTC) when the deletion of a resource
	// with finalizers was requested. Only a Backend sets it.
	DeletionKey = "deletionTimestamp"
)

// Finalizers returns the names of r's finalizers, in order.
func Finalizers(r *pb.Resource) []string { return strings.Fields(r.GetMetadata()[FinalizersKey]) }

// AddFinalizer adds a name without spaces to the finalizers of r, unless r has
// it already.
func AddFinalizer(r *pb.Resource, name string) {
	all := Finalizers(r)
	if slices.Contains(all, name) {
		return
	}
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[FinalizersKey] = strings.Join(append(all, name), " ")
}

// RemoveFinalizer removes a name from the finalizers of r. It removes the
// metadata key with the last name.
func RemoveFinalizer(r *pb.Resource, name string) {
	left := slices.DeleteFunc(Finalizers(r), func(f string) bool { return f == name })
	if len(left) > 0 {
		r.Metadata[FinalizersKey] = strings.Join(left, " ")
		return
	}
	delete(r.Metadata, FinalizersKey)
}

// Terminating returns the deletion timestamp of r, and whether r has one.
func Terminating(r *pb.Resource) (since time.Time, ok bool) {
	at, ok := r.GetMetadata()[DeletionKey]
	since, _ = time.Parse(time.RFC3339, at) // a Backend wrote it, so it is valid
	return since, ok
}

// MarkTerminating returns a copy of r with a deletion timestamp. It is for
// Backends.
func MarkTerminating(r *pb.Resource, at time.Time) *pb.Resource {
	r = proto.CloneOf(r)
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[DeletionKey] = at.UTC().Format(time.RFC3339)
	return r
}
