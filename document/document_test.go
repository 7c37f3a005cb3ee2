// SPDX-License-Identifier: MPL-2.0

package document

import (
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

func deep(n int) string {
	return `{"content":` + strings.Repeat("[", n-1) + "1" + strings.Repeat("]", n-1) + "}"
}

// TestValidate checks JSON that a document may have, and the errors for other.
func TestValidate(t *testing.T) {
	for in, want := range map[string]string{
		`{"content":null}`:                         "",
		`{"content":{"a":[1,"two",true,null,{}]}}`: "",
		`{"content":"text"}`:                       "",
		`{"content":{"":0}}`:                       "",
		`{}`:                                       "data.content: it is missing",
		deep(MaxDepth):                             "",
		deep(MaxDepth + 1):                         "is 65 levels deep: must be at most 64",
		`{"content":"` + strings.Repeat("x", MaxSize-8) + `"}`: "",
		`{"content":"` + strings.Repeat("x", MaxSize) + `"}`:   "encoded: must be at most 524288",
	} {
		d := &pb.Document{}
		if err := protojson.Unmarshal([]byte(in), d); err != nil {
			t.Fatal(err)
		}
		r, err := resource.New(Type, "d", d)
		if err != nil {
			t.Fatal(err)
		}
		err = validate(r)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || len(err.Error()) > 400) {
			t.Errorf("validate(%.80s) = %v, want %q", in, err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	list := func(v *structpb.Value) *pb.Document {
		return &pb.Document{Content: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"a\n": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewBoolValue(true), v}}),
		}})}
	}
	for want, d := range map[string]*pb.Document{
		`data.content.a\n[1] is NaN`:                       list(structpb.NewNumberValue(math.NaN())),
		`data.content.a\n[1] is -Inf`:                      list(structpb.NewNumberValue(math.Inf(-1))),
		`data.content.a\n[1]: a value without a kind`:      list(&structpb.Value{}),
		`data.content: a value without a kind is not JSON`: {Content: &structpb.Value{}},
		`data.content: it is missing; it may be any JSON`:  {},
		`data.content.` + strings.Repeat("k", 100): {Content: structpb.NewStructValue(&structpb.Struct{
			Fields: map[string]*structpb.Value{strings.Repeat("k", 1000): {}},
		})},
	} {
		err := Check(d)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
			t.Errorf("Check() = %v, want %q on one line", err, want)
		}
	}
}

func TestNew(t *testing.T) {
	r, err := New("limits", map[string]any{"rate": 100})
	if err != nil || r.Id.Name != "limits" || !resource.SameType(r.Id.Type, Type) {
		t.Fatalf("New() = %v, %v, want a document", r, err)
	}
	for _, bad := range []any{make(chan int), math.NaN()} {
		if _, err := New("x", bad); !errors.Is(err, resource.ErrInvalid) {
			t.Errorf("New() of %v = %v, want ErrInvalid", bad, err)
		}
	}
	if _, err := New("UPPER", nil); !errors.Is(err, resource.ErrInvalid) {
		t.Errorf("New() with a bad name = %v, want ErrInvalid", err)
	}
	g := resource.NewRegistry()
	if err := Register(g); err != nil {
		t.Fatal(err)
	}
	if reg, err := g.Lookup(Type); err != nil || !reg.Federated || reg.Scope != resource.ScopeNamespace {
		t.Errorf("Lookup() = %+v, %v, want a federated type with a namespace", reg, err)
	}
}

// FuzzCheck checks any message that decodes.
func FuzzCheck(f *testing.F) {
	for _, in := range []string{`{"content":{"a":[1,null]}}`, deep(100)} {
		d := &pb.Document{}
		if err := protojson.Unmarshal([]byte(in), d); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &pb.Document{}
		if proto.Unmarshal(b, d) != nil || Check(d) != nil {
			return
		}
		if _, err := protojson.Marshal(d); err != nil {
			t.Errorf("Marshal() of a checked document %v = %v", d, err)
		}
	})
}
