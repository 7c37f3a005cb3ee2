// SPDX-License-Identifier: MPL-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/hcl/ast"
	"github.com/hashicorp/hcl/hcl/parser"
	hclstrconv "github.com/hashicorp/hcl/hcl/strconv"
	"github.com/hashicorp/hcl/hcl/token"

	"github.com/wanfed/wanfed/internal/settings"
)

// pos is a position in a file. Lines count from 1.
type pos struct {
	file string
	line int
}

func (p pos) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// value is a value of a file. data is a string, bool, json.Number, []value or
// object.
type value struct {
	pos
	data any
	// assigned reports that the value follows "=" in HCL. An object without it
	// is a block.
	assigned bool
}

// object has the members of an object or a block in their order. Names may
// occur several times. The labels of a block are the names of nested objects.
type object []member

type member struct {
	name string
	value
}

// parse parses the content of a file: JSON if the name ends in .json, and
// HCL 1 if it ends in .hcl.
func parse(file string, src []byte) (object, error) {
	if err := settings.CheckText(file, src); err != nil {
		return nil, err
	}
	switch filepath.Ext(file) {
	case ".json":
		return parseJSON(file, src)
	case ".hcl":
		return parseHCL(file, src)
	}
	return nil, fmt.Errorf("%s: unknown format: the name of a configuration file must end in .hcl or .json", file)
}

func parseHCL(file string, src []byte) (object, error) {
	f, err := parser.Parse(src)
	if p, ok := errors.AsType[*parser.PosError](err); ok {
		reason := p.Err.Error()
		if strings.HasPrefix(reason, "Unknown token") { // the token may be a secret
			reason = "a value is missing, or a string without quotes"
		}
		return nil, &Error{File: file, Line: p.Pos.Line, Reason: reason}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	list, ok := f.Node.(*ast.ObjectList)
	if !ok {
		return nil, fmt.Errorf("%s: the file is not an object", file)
	}
	return hclFile(file).object(list)
}

// hclFile converts the syntax tree of the file of that name.
type hclFile string

func (f hclFile) object(list *ast.ObjectList) (object, error) {
	out := make(object, 0, len(list.Items))
	for _, item := range list.Items {
		v, err := f.value(item.Val)
		if err != nil {
			return nil, err
		}
		v.assigned = item.Assign.IsValid()
		for i := len(item.Keys) - 1; i >= 0; i-- {
			key := item.Keys[i].Token
			name := key.Text
			if key.Type == token.STRING {
				if name, err = hclstrconv.Unquote(key.Text); err != nil {
					return nil, f.errorf(key, "%v", err)
				}
			}
			v.pos = f.pos(key)
			if i == 0 {
				out = append(out, member{name, v})
			} else {
				v = value{pos: v.pos, data: object{{name, v}}}
			}
		}
	}
	return out, nil
}

func (f hclFile) value(node ast.Node) (value, error) {
	switch n := node.(type) {
	case *ast.ObjectType:
		o, err := f.object(n.List)
		return value{pos: pos{string(f), n.Lbrace.Line}, data: o}, err
	case *ast.ListType:
		list := make([]value, 0, len(n.List))
		for _, element := range n.List {
			v, err := f.value(element)
			if err != nil {
				return value{}, err
			}
			list = append(list, v)
		}
		return value{pos: pos{string(f), n.Lbrack.Line}, data: list}, nil
	case *ast.LiteralType:
		data, err := literal(n.Token)
		if err != nil {
			return value{}, f.errorf(n.Token, "bad value: %v", err)
		}
		return value{pos: f.pos(n.Token), data: data}, nil
	}
	return value{}, fmt.Errorf("%s: unexpected %T", string(f), node)
}

// literal returns the value of a token. Token.Value panics if a number exceeds
// its range, or if an escape sequence is invalid.
func literal(t token.Token) (any, error) {
	switch t.Type {
	case token.BOOL:
		return t.Text == "true", nil
	case token.NUMBER:
		n, err := strconv.ParseInt(t.Text, 0, 64)
		if err != nil {
			return nil, errors.New("must be a number of 64 bits")
		}
		return json.Number(strconv.FormatInt(n, 10)), nil
	case token.FLOAT:
		n, err := strconv.ParseFloat(t.Text, 64)
		if err != nil {
			return nil, errors.New("must be a number of 64 bits")
		}
		return json.Number(strconv.FormatFloat(n, 'g', -1, 64)), nil
	case token.STRING:
		return hclstrconv.Unquote(t.Text)
	case token.HEREDOC:
		return t.Value(), nil
	}
	return nil, errors.New("is not a value")
}

func (f hclFile) pos(t token.Token) pos { return pos{string(f), t.Pos.Line} }

func (f hclFile) errorf(t token.Token, format string, args ...any) error {
	return &Error{File: string(f), Line: t.Pos.Line, Reason: fmt.Sprintf(format, args...)}
}

// jsonFile reads a JSON file. The JSON parser of package hcl ignores booleans
// in lists, and has no positions.
type jsonFile struct {
	name string
	src  []byte
	dec  *json.Decoder
	// line is the line of offset.
	line   int
	offset int64
}

func parseJSON(name string, src []byte) (object, error) {
	f := &jsonFile{name: name, src: src, dec: json.NewDecoder(bytes.NewReader(src)), line: 1}
	f.dec.UseNumber()
	v, err := f.value()
	if err == nil {
		if _, more := f.dec.Token(); more != io.EOF {
			err = errors.New("data after the object")
		}
	}
	if err != nil {
		return nil, &Error{File: name, Line: f.pos().line, Reason: err.Error()}
	}
	o, ok := v.data.(object)
	if !ok {
		return nil, &Error{File: name, Line: v.line, Reason: "the file must be an object"}
	}
	return o, nil
}

// pos returns the position at which the last token ended.
func (f *jsonFile) pos() pos {
	end := f.dec.InputOffset()
	f.line += bytes.Count(f.src[f.offset:end], []byte("\n"))
	f.offset = end
	return pos{f.name, f.line}
}

// token returns the next token. A file that ends before it is an error.
func (f *jsonFile) token() (json.Token, error) {
	t, err := f.dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return t, err
}

func (f *jsonFile) value() (value, error) {
	t, err := f.token()
	v := value{pos: f.pos(), data: t}
	if err != nil {
		return v, err
	}
	switch t {
	case json.Delim('['):
		list := []value{}
		for f.dec.More() {
			element, err := f.value()
			if err != nil {
				return v, err
			}
			list = append(list, element)
		}
		v.data = list
	case json.Delim('{'):
		o := object{}
		for f.dec.More() {
			key, err := f.value()
			if err != nil {
				return v, err
			}
			element, err := f.value()
			if err != nil {
				return v, err
			}
			if element.data == nil {
				continue // null: the member is absent
			}
			element.pos = key.pos
			o = append(o, member{key.data.(string), element})
		}
		v.data = o
	default:
		return v, nil
	}
	_, err = f.token() // the closing bracket
	return v, err
}

// marshal returns the JSON of a value. text converts each string.
func (v value) marshal(text func(string) (string, error)) (json.RawMessage, error) {
	plain, err := v.plain(text)
	if err != nil {
		return nil, err
	}
	return json.Marshal(plain)
}

// plain returns the value without positions. The last of several members with
// one name counts.
func (v value) plain(text func(string) (string, error)) (any, error) {
	switch d := v.data.(type) {
	case string:
		return text(d)
	case []value:
		list := make([]any, 0, len(d))
		for _, element := range d {
			p, err := element.plain(text)
			if err != nil {
				return nil, err
			}
			list = append(list, p)
		}
		return list, nil
	case object:
		m := make(map[string]any, len(d))
		for _, e := range d {
			p, err := e.plain(text)
			if err != nil {
				return nil, err
			}
			m[e.name] = p
		}
		return m, nil
	}
	return v.data, nil
}
