// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"crypto/rand"
	"fmt"
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
// generation. New fails with ErrInvalid for an invalid name, and if data cannot
// be encoded. Use NewNamed for a type whose Registration has a CheckName.
func New(typ *pb.Type, name string, data proto.Message) (*pb.Resource, error) {
	return NewNamed(typ, name, CheckName, data)
}

// NewNamed is like New, but checks the name with check in place of CheckName.
func NewNamed(typ *pb.Type, name string, check func(name string) error, data proto.Message) (*pb.Resource, error) {
	if err := check(name); err != nil {
		return nil, err
	}
	r := &pb.Resource{Id: ID(proto.CloneOf(typ), name)}
	err := SetData(r, data)
	setUID(r)
	return r, err
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

// WithData returns a copy of r with other data and a new generation. To store
// the copy, commit a PutOp with r.Version as the expected version.
func WithData(r *pb.Resource, data proto.Message) (*pb.Resource, error) {
	r = proto.CloneOf(r)
	return r, SetData(r, data)
}

// Decode returns the data of r as a new message of type T, for example
// Decode[*pb.FederationState](r). Other or no data is an ErrInvalid.
func Decode[T proto.Message](r *pb.Resource) (T, error) {
	var zero T
	msg := zero.ProtoReflect().New().Interface().(T)
	if err := decodeInto(r, msg); err != nil {
		return zero, err
	}
	return msg, nil
}

// ValidateData returns a Registration.Validate that calls check with the data.
func ValidateData[T proto.Message](check func(T) error) func(*pb.Resource) error {
	return func(r *pb.Resource) error {
		data, err := Decode[T](r)
		if err != nil {
			return err
		}
		return check(data)
	}
}

// decodeInto decodes the data of r into msg.
func decodeInto(r *pb.Resource, msg proto.Message) error {
	want := msg.ProtoReflect().Descriptor().FullName()
	if got := r.GetData().MessageName(); got != want {
		return fmt.Errorf("%w data of %s: its type is %q, not %q", ErrInvalid, IDString(r.GetId()), got, want)
	}
	if err := proto.Unmarshal(r.GetData().GetValue(), msg); err != nil {
		return fmt.Errorf("%w data of %s: not a %s: %w", ErrInvalid, IDString(r.GetId()), want, err)
	}
	return nil
}

// NewUID returns a uid for a new resource. The uid is a ULID: 26 characters
// that sort by the time of creation in milliseconds, with 80 random bits.
func NewUID() string { return ulid.MustNew(ulid.Now(), rand.Reader).String() }

// setUID gives a new resource its uid, which is also its first generation. One
// text for both reduces the memory of the store.
func setUID(r *pb.Resource) {
	r.Id.Uid = NewUID()
	r.Generation = r.Id.Uid
}

// NewGeneration returns a generation for changed data, also a ULID.
func NewGeneration() string { return NewUID() }

// TimeOf returns the time in a ULID, or the zero time for any other text.
func TimeOf(id string) time.Time {
	parsed, err := ulid.ParseStrict(id)
	if err != nil {
		return time.Time{}
	}
	return parsed.Timestamp()
}

// Metadata keys that every Backend interprets. Consul has the same keys.
const (
	// FinalizersKey holds names, separated by spaces, of programs that must
	// clean up before the resource is deleted.
	FinalizersKey = "finalizers"
	// DeletionKey holds the time (RFC 3339, UTC) when the deletion of a
	// resource with finalizers was requested. Only a Backend sets it.
	DeletionKey = "deletionTimestamp"
)

// Finalizers returns the names of r's finalizers, in order.
func Finalizers(r *pb.Resource) []string { return strings.Fields(r.GetMetadata()[FinalizersKey]) }

// Terminating returns the deletion timestamp of r, and whether r has one.
func Terminating(r *pb.Resource) (since time.Time, ok bool) {
	at, ok := r.GetMetadata()[DeletionKey]
	if !ok {
		return time.Time{}, false
	}
	since, _ = time.Parse(time.RFC3339, at) // a Backend wrote it, so it is valid
	return since, ok
}

// MarkTerminating returns a copy of r with a deletion timestamp, for Backends.
func MarkTerminating(r *pb.Resource, at time.Time) *pb.Resource {
	r = proto.CloneOf(r)
	if r.Metadata == nil {
		r.Metadata = make(map[string]string)
	}
	r.Metadata[DeletionKey] = at.UTC().Format(time.RFC3339)
	return r
}
