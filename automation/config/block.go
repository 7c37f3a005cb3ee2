// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// Error is an error in a configuration file. Its text is one line.
type Error struct {
	File string
	// Line counts from 1. 0: unknown.
	Line int
	// Block is the block with the error, such as `task "t": condition "services"`.
	// Empty: the top level.
	Block string
	// Field is the name of an argument in the block. Empty: the block itself.
	Field string
	// Reason has what is wrong, and the rule or a remedy.
	Reason string
}

func (e *Error) Error() string {
	text := e.File
	if e.Line > 0 {
		text = pos{e.File, e.Line}.String()
	}
	for _, part := range []string{e.Block, e.Field, e.Reason} {
		if part != "" {
			text += ": " + part
		}
	}
	return text
}

// block reads the arguments and the nested blocks of a block. Its methods add
// errors to the loader. The function of each type changes *to only if the
// argument is present and valid.
type block struct {
	*loader
	pos
	// name is the path of the block in errors. Empty: the top level.
	name    string
	members object
	known   map[string]bool
}

func (l *loader) block(name string, p pos, o object) *block {
	return &block{loader: l, pos: p, name: name, members: o, known: make(map[string]bool)}
}

// sub returns a block inside of b.
func (b *block) sub(name string, p pos, o object) *block {
	if b.name != "" {
		name = b.name + ": " + name
	}
	return b.loader.block(name, p, o)
}

func (b *block) fail(p pos, field, format string, args ...any) {
	b.errs = append(b.errs, &Error{p.file, p.line, b.name, field, fmt.Sprintf(format, args...)})
}

func (b *block) warn(p pos, field, format string, args ...any) {
	e := Error{p.file, p.line, b.name, field, fmt.Sprintf(format, args...)}
	b.cfg.Warnings = append(b.cfg.Warnings, e.Error())
}

// at returns the position of an argument, or of the block if it is absent.
func (b *block) at(name string) pos {
	for _, m := range b.members {
		if m.name == name {
			return m.pos
		}
	}
	return b.pos
}

// all returns the values of an argument. A list of objects stands for several
// blocks, as in JSON.
func (b *block) all(name string) (values []value) {
	b.known[name] = true
	for _, m := range b.members {
		if m.name == name {
			values = append(values, m.expand()...)
		}
	}
	return values
}

// expand returns the elements of a list of objects, and v itself otherwise.
func (v value) expand() []value {
	list, ok := v.data.([]value)
	if !ok || len(list) == 0 || slices.ContainsFunc(list, func(e value) bool { return !isObject(e) }) {
		return []value{v}
	}
	return list
}

// one returns the only value of an argument. It returns false if the argument
// is absent.
func (b *block) one(name string) (value, bool) {
	values := b.all(name)
	if len(values) == 0 {
		return value{}, false
	}
	if len(values) > 1 {
		b.fail(values[1].pos, name, "may occur only once in this block")
	}
	return values[0], true
}

// done adds an error for the arguments that no method has read.
func (b *block) done() {
	unknown := make(map[string]pos)
	for _, m := range b.members {
		if _, seen := unknown[m.name]; !seen && !b.known[m.name] {
			unknown[m.name] = m.pos
		}
	}
	var names []string
	first := b.pos
	for name, p := range unknown {
		if len(names) == 0 || p.line < first.line {
			first = p
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		slices.Sort(names)
		b.fail(first, "", "unknown keys: %s", strings.Join(names, ", "))
	}
}

// knowAll accepts all arguments.
func (b *block) knowAll() {
	for _, m := range b.members {
		b.known[m.name] = true
	}
}

// rename replaces a deprecated name of an argument, and adds a warning.
func (b *block) rename(deprecated, name string) {
	for i, m := range b.members {
		if m.name == deprecated {
			b.warn(m.pos, deprecated, "is deprecated: the name is %s", name)
			b.members[i].name = name
		}
	}
}

// refuse adds an error if the argument is present.
func (b *block) refuse(name, reason string) {
	if values := b.all(name); len(values) > 0 {
		b.fail(values[0].pos, name, "is not supported: %s", reason)
	}
}

// ignore adds a warning if the argument is present.
func (b *block) ignore(name, reason string) {
	if values := b.all(name); len(values) > 0 {
		b.warn(values[0].pos, name, "has no effect: %s", reason)
	}
}

// isTemplate matches the templates that terraform_provider blocks may have.
var isTemplate = regexp.MustCompile(`(?s)\{\{.*\}\}`).MatchString

// text returns a scalar as text.
func (b *block) text(v value, field string) (string, bool) {
	switch d := v.data.(type) {
	case string:
		if isTemplate(d) {
			b.fail(v.pos, field, "%q: only terraform_provider blocks may have templates", d)
			return "", false
		}
		return d, true
	case json.Number:
		return d.String(), true
	case bool:
		return strconv.FormatBool(d), true
	}
	b.fail(v.pos, field, "must be a string")
	return "", false
}

func (b *block) string(name string, to *string) {
	if v, ok := b.one(name); ok {
		if s, ok := b.text(v, name); ok {
			*to = s
		}
	}
}

func (b *block) bool(name string, to *bool) {
	if v, ok := b.one(name); ok {
		s, ok := b.text(v, name)
		on, err := strconv.ParseBool(s)
		switch {
		case !ok:
		case err != nil:
			b.fail(v.pos, name, "%q: must be true or false", s)
		default:
			*to = on
		}
	}
}

// optional reads a boolean whose absence has a meaning.
func (b *block) optional(name string, to **bool) {
	if len(b.all(name)) > 0 {
		var on bool
		b.bool(name, &on)
		*to = &on
	}
}

// optionalString reads a string whose absence has a meaning.
func (b *block) optionalString(name string, to **string) {
	if len(b.all(name)) > 0 {
		var s string
		b.string(name, &s)
		*to = &s
	}
}

// int reads a number from 0 to limit.
func (b *block) int(name string, to *int, limit int) {
	if v, ok := b.one(name); ok {
		s, ok := b.text(v, name)
		n, err := strconv.Atoi(s)
		switch {
		case !ok:
		case err != nil || n < 0 || n > limit:
			b.fail(v.pos, name, "%q: must be a number from 0 to %d", s, limit)
		default:
			*to = n
		}
	}
}

func (b *block) duration(name string, to *time.Duration) {
	if v, ok := b.one(name); ok {
		s, ok := b.text(v, name)
		d, err := time.ParseDuration(s)
		switch {
		case !ok:
		case err != nil:
			b.fail(v.pos, name, "%q: must be a duration with a unit, such as 5s", s)
		case d < 0:
			b.fail(v.pos, name, "%v: must not be negative", d)
		default:
			*to = d
		}
	}
}

func (b *block) durationProto(name string, to **durationpb.Duration) {
	d := time.Duration(-1)
	if b.duration(name, &d); d >= 0 {
		*to = durationpb.New(d)
	}
}

// strings reads a list of strings. One string stands for a list of one element.
func (b *block) strings(name string, to *[]string) {
	v, ok := b.one(name)
	if !ok {
		return
	}
	list, ok := v.data.([]value)
	if !ok {
		list = []value{v}
	}
	out := make([]string, 0, len(list))
	for _, element := range list {
		s, ok := b.text(element, name)
		if !ok {
			return
		}
		out = append(out, s)
	}
	*to = out
}

// stringMap reads a map of strings, and adds it to *to.
func (b *block) stringMap(name string, to *map[string]string) {
	b.nested(name, func(m *block) {
		for _, e := range m.members {
			m.known[e.name] = true
			if s, ok := m.text(e.value, e.name); ok {
				if *to == nil {
					*to = make(map[string]string)
				}
				(*to)[e.name] = s
			}
		}
	})
}

// nested reads the nested block of that name, if there is one, with read.
func (b *block) nested(name string, read func(*block)) {
	if v, ok := b.one(name); ok {
		b.body(name, v, read)
	}
}

// body reads the block with the value v.
func (b *block) body(name string, v value, read func(*block)) {
	o, ok := v.data.(object)
	if !ok {
		b.fail(v.pos, name, "must be a block: %s { ... }", name)
		return
	}
	sub := b.sub(name, v.pos, o)
	read(sub)
	sub.done()
}

// labeled reads the nested blocks NAME "LABEL" { ... } with read.
func (b *block) labeled(name string, read func(label string, sub *block)) {
	for _, v := range b.all(name) {
		labels, ok := v.data.(object)
		if !ok {
			b.fail(v.pos, name, `must be a block: %s "..." { ... }`, name)
			continue
		}
		group := b.sub(name, v.pos, labels)
		for i, label := range labels {
			if slices.ContainsFunc(labels[:i], func(m member) bool { return m.name == label.name }) {
				continue // all has returned the values of each member of this name
			}
			for _, body := range group.all(label.name) {
				b.body(fmt.Sprintf("%s %q", name, label.name), body, func(sub *block) { read(label.name, sub) })
			}
		}
	}
}
