// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckName(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "dc-2": true, "srv1.dc1": true, "0_1": true, "-": true, strings.Repeat("x", 253): true,
		"": false, strings.Repeat("x", 254): false, "A": false, "a b": false, "a/b": false, "*": false, "ä": false,
		"a\x00": false,
	} {
		err := CheckName(name)
		if (err == nil) != good || err != nil && (!errors.Is(err, ErrInvalid) ||
			!strings.Contains(err.Error(), fmt.Sprintf("name %q: must be 1 to 253", name))) {
			t.Errorf("CheckName(%q) = %v, want valid: %t", name, err, good)
		}
	}
}

func TestCheckUTF8Name(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "a/b": true, "/": true, "A b": true, "*": true, "ä\n": true, strings.Repeat("x", 512): true,
		"": false, strings.Repeat("x", 513): false, "a\x00b": false, "a\xff": false,
	} {
		reg := Registration{CheckName: CheckUTF8Name}
		if err := reg.checkName(name); (err == nil) != good || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("CheckUTF8Name(%q) = %v, want valid: %t", name, err, good)
		}
		if err := reg.checkPrefix(name); (err == nil) != (good || name == "") || err != nil &&
			!errors.Is(err, ErrInvalid) {
			t.Errorf("checkPrefix(%q) = %v, want valid: %t", name, err, good || name == "")
		}
	}
}

// TestIDString_Untrusted checks that IDString returns one short line for any
// name.
func TestIDString_Untrusted(t *testing.T) {
	id := &pb.ID{Type: &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}}
	for name, want := range map[string]string{
		"a/b":                      `kv/v1/Entry "a/b"`,
		"a\n\x1b[2J\"":             `kv/v1/Entry "a\n\x1b[2J\""`,
		strings.Repeat("x", 1<<20): `kv/v1/Entry "` + strings.Repeat("x", 512) + `"… (1048576 bytes)`,
	} {
		if id.Name = name; IDString(id) != want {
			t.Errorf("IDString() = %.600s, want %.600s", IDString(id), want)
		}
	}
}

func TestNewUID(t *testing.T) {
	const example = "01ARYZ6S41TSV4RRFFQ69G5FAV" // of the ULID specification
	if got, want := TimeOf(example), time.UnixMilli(1469918176385); !got.Equal(want) {
		t.Errorf("TimeOf(%s) = %v, want %v", example, got, want)
	}
	for _, bad := range []string{"", "not a ULID", strings.Repeat("!", 26)} {
		if got := TimeOf(bad); !got.IsZero() {
			t.Errorf("TimeOf(%q) = %v, want the zero time", bad, got)
		}
	}
	testutil.Bubble(t, func(t *testing.T) {
		first := NewUID()
		if got, want := TimeOf(first), time.Now(); !got.Equal(want) {
			t.Errorf("TimeOf(NewUID()) = %v, want %v", got, want)
		}
		time.Sleep(time.Millisecond)
		if second := NewUID(); len(first) != 26 || first >= second {
			t.Errorf("NewUID() = %s and, a millisecond later, %s, want 26 characters in order", first, second)
		}
	})
	seen := make(map[string]bool)
	for range 1000 {
		uid := NewUID()
		if seen[uid] || strings.Trim(uid, ulid.Encoding) != "" {
			t.Fatalf("NewUID() = %s, want a new uid in the ULID alphabet", uid)
		}
		seen[uid] = true
	}
}

var fsType = &pb.Type{Group: "federation", GroupVersion: "v1", Kind: "FederationState"}

func TestNew(t *testing.T) {
	r, err := New(fsType, "dc2", &pb.FederationState{Datacenter: "dc2"})
	if err != nil {
		t.Fatal(err)
	}
	state, err := Decode[*pb.FederationState](r)
	if err != nil || state.GetDatacenter() != "dc2" {
		t.Errorf("Decode() of the result of New() = %v, %v, want datacenter dc2", state, err)
	}
	generation := r.Generation
	if err := SetData(r, &pb.FederationState{Datacenter: "dc3"}); err != nil || r.Generation == generation {
		t.Errorf("SetData() = %v with generation %s, want nil with a generation other than %s", err, r.Generation,
			generation)
	}
	if err := CheckResource(r); err != nil {
		t.Errorf("CheckResource(%v) = %v, want nil", r, err)
	}
	if _, err := New(fsType, "DC2", &pb.FederationState{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("New(DC2) = %v, want ErrInvalid", err)
	}
}

func TestDecode_Invalid(t *testing.T) {
	r, err := New(fsType, "dc2", &pb.FederationState{Datacenter: "dc2"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Decode[*pb.Node](r)
	want := `invalid data of federation/v1/FederationState "dc2": its type is "wanfed.v1.FederationState", not ` +
		`"wanfed.v1.Node"`
	if !errors.Is(err, ErrInvalid) || err.Error() != want {
		t.Errorf("Decode() as another type = %v, want %s", err, want)
	}
	r.Data.Value = []byte{0xff}
	if _, err := Decode[*pb.FederationState](r); !errors.Is(err, ErrInvalid) {
		t.Errorf("Decode() of damaged data = %v, want ErrInvalid", err)
	}
	if _, err := Decode[*pb.FederationState](&pb.Resource{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Decode() without data = %v, want ErrInvalid", err)
	}
}

func TestIDString_Tenancy(t *testing.T) {
	id := &pb.ID{Type: fsType, Name: "x", Tenancy: &pb.Tenancy{Namespace: "n"}}
	if got, want := IDString(id), `federation/v1/FederationState "x" in default/n`; got != want {
		t.Errorf("IDString(%v) = %s, want %s", id, got, want)
	}
}

func TestRegistry(t *testing.T) {
	g := NewRegistry()
	node := &pb.Type{Group: "catalog", GroupVersion: "v1", Kind: "Node"}
	for _, reg := range []Registration{
		{Type: fsType, Message: &pb.FederationState{}, Federated: true, Scope: ScopeCluster},
		{Type: node, Message: &pb.Node{}},
	} {
		if err := g.Register(reg); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Register(Registration{Type: node, Message: &pb.Node{}}); err == nil ||
		err.Error() != "register type catalog/v1/Node: it is registered already" {
		t.Errorf("second Register() = %v, want an error", err)
	}
	for _, typ := range []*pb.Type{
		nil,
		{Group: "Catalog", GroupVersion: "v1", Kind: "Node"},
		{Group: "catalog", GroupVersion: "", Kind: "Node"},
		{Group: "catalog", GroupVersion: "v1", Kind: "node"},
		{Group: "catalog", GroupVersion: "v1", Kind: "No-de"},
	} {
		err := g.Register(Registration{Type: typ})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "type.") ||
			!strings.Contains(err.Error(), "message") {
			t.Errorf("Register(%v) without a message = %v, want errors for type and message", typ, err)
		}
	}
	for want, reg := range map[string]Registration{
		`must be as catalog/v1/Node has it`: {Type: &pb.Type{Group: "catalog", GroupVersion: "v2", Kind: "Node"},
			Message: &pb.Node{}, Scope: ScopeCluster},
		`invalid scope 3: must be ScopeNamespace`: {
			Type: &pb.Type{Group: "x", GroupVersion: "v1", Kind: "Y"}, Message: &pb.Node{}, Scope: 3,
		},
	} {
		if err := g.Register(reg); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("Register(%v) = %v, want %s", reg, err, want)
		}
	}
	if reg, err := g.Lookup(fsType); err != nil || !reg.Federated {
		t.Errorf("Lookup(%v) = %+v, %v, want a federated type", fsType, reg, err)
	}
	_, err := g.Lookup(&pb.Type{Group: "x", GroupVersion: "v1", Kind: "Y"})
	if want :=
		`invalid type "x/v1/Y": is not registered; known are catalog/v1/Node, federation/v1/FederationState`; err == nil || err.Error() != want {
		t.Errorf("Lookup() of an unknown type = %v, want %s", err, want)
	}
	if all := g.Types(); len(all) != 2 || all[0].Type.Kind != "Node" {
		t.Errorf("Types() = %v, want two types, Node first", all)
	}
}

// TestStatusError_RoundTrip checks that FromStatus returns the class and the
// text of every error that StatusError encodes.
func TestStatusError_RoundTrip(t *testing.T) {
	for _, c := range errorClasses {
		err := fmt.Errorf("write x: %w", c.err)
		st := status.Convert(StatusError(err))
		if st.Code() != c.code || st.Message() != err.Error() {
			t.Errorf("StatusError(%v) = %v, want code %v", err, st, c.code)
		}
		received := FromStatus(status.FromProto(proto.CloneOf(st.Proto())).Err())
		for _, other := range errorClasses {
			if got, want := errors.Is(received, other.err), other.err == c.err; got != want {
				t.Errorf("errors.Is(FromStatus(%v), %v) = %t, want %t", st, other.err, got, want)
			}
		}
		if received.Error() != err.Error() || status.Code(received) != c.code {
			t.Errorf("FromStatus(%v) = %q with code %v, want %q with code %v", st, received, status.Code(received),
				err, c.code)
		}
		if again := StatusError(received); status.Code(again) != c.code {
			t.Errorf("StatusError(%v) = %v, want code %v", received, again, c.code)
		}
	}
}

func TestStatusError_Others(t *testing.T) {
	if StatusError(nil) != nil || FromStatus(nil) != nil {
		t.Errorf("StatusError(nil), FromStatus(nil) = %v, %v, want nil", StatusError(nil), FromStatus(nil))
	}
	both := errors.Join(ErrUnknownOutcome, context.DeadlineExceeded)
	if got := FromStatus(StatusError(both)); !errors.Is(got, ErrUnknownOutcome) {
		t.Errorf("FromStatus(StatusError(%v)) = %v, want ErrUnknownOutcome", both, got)
	}
	if got := status.Code(StatusError(errors.New("fault"))); got != codes.Internal {
		t.Errorf("StatusError() of an unknown error = %v, want code Internal", got)
	}
	for err, want := range map[error]error{
		status.Error(codes.NotFound, "x"):         ErrNotFound,
		status.Error(codes.DeadlineExceeded, "x"): context.DeadlineExceeded,
	} {
		if got := FromStatus(err); !errors.Is(got, want) {
			t.Errorf("FromStatus(%v) = %v, want %v", err, got, want)
		}
	}
	plain := errors.New("no status")
	for _, err := range []error{plain, status.Error(codes.Unavailable, "connection refused")} {
		if got := FromStatus(err); got != err {
			t.Errorf("FromStatus(%v) = %v, want the argument", err, got)
		}
	}
}

// TestShallowCopy_HasEveryField fails if a field is added to pb.Resource or
// pb.ID, and shallowCopy does not copy it.
func TestShallowCopy_HasEveryField(t *testing.T) {
	r := &pb.Resource{
		Id:    &pb.ID{Uid: "u", Name: "n", Type: &pb.Type{Group: "g"}, Tenancy: &pb.Tenancy{Partition: "p"}},
		Owner: &pb.ID{Name: "o"}, Version: "1", Generation: "g", Metadata: map[string]string{"k": "v"},
		Status: map[string]*pb.Status{"s": {}}, Data: &anypb.Any{TypeUrl: "t"},
		CreateIndex: 1, ModifyIndex: 2, PrimaryModifyIndex: 3, PrimaryEpoch: 4,
	}
	for _, m := range []protoreflect.Message{r.ProtoReflect(), r.Id.ProtoReflect()} {
		for i := range m.Descriptor().Fields().Len() {
			if f := m.Descriptor().Fields().Get(i); !m.Has(f) {
				t.Errorf("field %s is not set by the test, want every field", f.FullName())
			}
		}
	}
	r.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 1))
	if got := shallowCopy(r); !proto.Equal(got, r) || got.Id == r.Id {
		t.Errorf("shallowCopy() = %v, want %v with its own id", got, r)
	}
}
