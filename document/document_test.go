// SPDX-License-Identifier: MPL-2.0

package document

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// deep returns the JSON of a document with a list of depth n.
func deep(n int) string {
	return `{"content":` + strings.Repeat("[", n-1) + "1" + strings.Repeat("]", n-1) + "}"
}

// TestCheck_JSON checks the errors for the content of a document in JSON.
func TestCheck_JSON(t *testing.T) {
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
		err := Check(d)
		if (err == nil) != (want == "") || err != nil &&
			(!strings.Contains(err.Error(), want) || len(err.Error()) > 400) {
			t.Errorf("Check(%.80s) = %v, want %q in at most 400 bytes", in, err, want)
		}
	}
}

// TestCheckJSON checks that JSON with too many values is refused before it is
// decoded, and that the bound refuses nothing that Check accepts.
func TestCheckJSON(t *testing.T) {
	list := func(value string, n int) string {
		return `{"content":[` + strings.Repeat(value+",", n) + value + "]}"
	}
	fits := 0
	for n := MaxSize / minValue; n > 0; n /= 2 { // the longest list that Check accepts
		d := &pb.Document{}
		if err := protojson.Unmarshal([]byte(list("null", fits+n)), d); err != nil {
			t.Fatal(err)
		}
		if Check(d) == nil {
			fits += n
		}
	}
	for in, want := range map[string]bool{
		list("null", fits):   true,
		list("0", 2_500_000): false,
		`{"content":"` + strings.Repeat(`,\",`, MaxSize/8) + `"}`: true,
	} {
		if err := checkJSON([]byte(in)); (err == nil) != want {
			t.Errorf("checkJSON(%.40s of %d bytes) = %v, want accepted: %t", in, len(in), err, want)
		}
	}
}

// TestCheck_NotJSON checks the errors for content that has no form in JSON.
func TestCheck_NotJSON(t *testing.T) {
	list := func(v *structpb.Value) *pb.Document {
		return &pb.Document{Content: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"a\n": structpb.NewListValue(&structpb.ListValue{
				Values: []*structpb.Value{structpb.NewBoolValue(true), v},
			}),
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
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
			len(err.Error()) > 400 {
			t.Errorf("Check(%.80v) = %v, want %q on one line of at most 400 bytes", d, err, want)
		}
	}
}

// TestRegister checks the registration, and that it validates the content.
func TestRegister(t *testing.T) {
	g := resource.NewRegistry()
	if err := Register(g); err != nil {
		t.Fatal(err)
	}
	reg, err := g.Lookup(Type)
	if err != nil || !reg.Federated || reg.Scope != resource.ScopeNamespace {
		t.Fatalf("Lookup(%v) = %+v, %v, want a federated type with a namespace", Type, reg, err)
	}
	r, err := resource.New(Type, "empty", &pb.Document{})
	if err != nil {
		t.Fatal(err)
	}
	if err := reg.Validate(r); err == nil {
		t.Error("Validate() of a document without content = nil, want an error")
	}
}

// FuzzCheck checks that every document that Check accepts has a form in JSON.
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
			t.Errorf("protojson.Marshal(%v) = %v, want nil after Check() = nil", d, err)
		}
	})
}
