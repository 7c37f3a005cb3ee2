// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
)

// New returns a resource of the default tenancy that is ready to be created: with data, a new uid and a new generation.
// It fails with ErrInvalid for a bad name, and if data cannot be encoded. Types whose registration has CheckName need NewNamed.
func New(typ *pb.Type, name string, data proto.Message) (*pb.Resource, error) {
	return NewNamed(typ, name, CheckName, data)
}

// NewNamed is New with another rule for the name: that of the type's registration.
func NewNamed(typ *pb.Type, name string, check func(name string) error, data proto.Message) (*pb.Resource, error) {
	if err := check(name); err != nil {
		return nil, err
	}
	r := &pb.Resource{
		Id: &pb.ID{
			Uid: NewUID(), Name: name, Type: proto.CloneOf(typ),
			Tenancy: FillTenancy(nil),
		},
	}
	if err := SetData(r, data); err != nil {
		return nil, err
	}
	return r, nil
}

// SetData replaces the data of r, which the caller owns, and gives it a new generation.
func SetData(r *pb.Resource, data proto.Message) error {
	a, err := anypb.New(data)
	if err != nil {
		return fmt.Errorf("encode data of %s: %w", IDString(r.GetId()), err)
	}
	r.Data, r.Generation = a, NewGeneration()
	return nil
}

// Decode returns the data of r, decoded into a new message of type T: Decode[*pb.FederationState](r). It fails with
// ErrInvalid if r holds data of another type, or none.
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
