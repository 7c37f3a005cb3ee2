// SPDX-License-Identifier: MPL-2.0

package document

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Type is the federated type of documents.
var Type = &pb.Type{Group: "config", GroupVersion: "v1", Kind: "Document"}

const (
	// MaxSize bounds the content of a document, in bytes of protobuf.
	MaxSize = 512 << 10
	// MaxDepth bounds the nesting of lists and objects. A string has depth 1.
	MaxDepth = 64
)

// Register adds Type to a registry, with the default authorization.
func Register(g *resource.Registry) error {
	return g.Register(resource.Registration{Type: Type, Message: &pb.Document{}, Federated: true,
		CheckJSON: checkJSON, Validate: resource.ValidateData(Check)})
}

// minValue is the least number of bytes of a value in a list, encoded.
const minValue = 4

// checkJSON refuses JSON with more values than MaxSize has room for. A value in
// a list has two bytes in JSON, and far more in memory.
func checkJSON(b []byte) error {
	values, text := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '\\':
			i++
		case c == '"':
			text = !text
		case c == ',' && !text:
			values++
		}
	}
	if n := values * minValue; n > MaxSize {
		return fmt.Errorf("content has %d values, and so more than %d bytes, encoded: must be at most %d", values, n,
			MaxSize)
	}
	return nil
}

// Check returns an error that names an invalid part of a document.
func Check(d *pb.Document) error {
	if d.GetContent() == nil {
		return errors.New(`data.content: it is missing; it may be any JSON value, also null`)
	}
	if n := proto.Size(d.Content); n > MaxSize {
		return fmt.Errorf("data.content has %d bytes, encoded: must be at most %d", n, MaxSize)
	}
	return check("data.content", d.Content, 1)
}

// check checks the value v with the given path and nesting depth.
func check(path string, v *structpb.Value, depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("%s is %d levels deep: must be at most %d", shorten(path), depth, MaxDepth)
	}
	switch k := v.GetKind().(type) {
	case nil:
		return fmt.Errorf("%s: a value without a kind is not JSON", shorten(path))
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return fmt.Errorf("%s is %v, which is not a number in JSON", shorten(path), k.NumberValue)
		}
	case *structpb.Value_StructValue:
		for name, field := range k.StructValue.GetFields() {
			if err := check(path+"."+name, field, depth+1); err != nil {
				return err
			}
		}
	case *structpb.Value_ListValue:
		for i, item := range k.ListValue.GetValues() {
			if err := check(path+"["+strconv.Itoa(i)+"]", item, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// shorten returns a path for an error, on one line and of limited length.
func shorten(path string) string {
	if len(path) > 200 {
		path = path[:200] + "…"
	}
	q := strconv.Quote(path)
	return q[1 : len(q)-1]
}
