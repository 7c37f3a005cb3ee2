// SPDX-License-Identifier: MPL-2.0

package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	template "text/template/parse"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
)

// ProviderBlock is a block terraform_provider. Its templates are not evaluated.
type ProviderBlock struct {
	// Name and Alias identify the provider. An empty alias: the default
	// instance.
	Name, Alias string
	// Pos is FILE:LINE.
	Pos string

	block string // in errors
	body  object
	env   map[string]value
}

// notArguments has the members of the block that Terraform does not see.
var notArguments = []string{"alias", "auto_commit", "task_env"}

// Lookups has the data of templates.
type Lookups struct {
	// Env returns the value of an environment variable, or "" if it is not set.
	Env func(name string) string
	// Key returns the value of a key. A missing key is an error.
	Key func(ctx context.Context, path string) (string, error)
}

// Evaluate returns the providers that a task lists, in its order. A provider
// without a block has no arguments. Errors and blocking are those of
// ProviderBlock.Evaluate.
func (c *Config) Evaluate(ctx context.Context, t *pb.Task, lookups Lookups) ([]driver.Provider, error) {
	var out []driver.Provider
	for _, ref := range t.GetTerraform().GetProviders() {
		name, alias, _ := strings.Cut(ref, ".")
		p := ProviderBlock{Name: name, Alias: alias}
		for i := range c.Providers {
			if q := &c.Providers[i]; q.Name == name && q.Alias == alias {
				p = *q
			}
		}
		evaluated, err := p.Evaluate(ctx, lookups)
		if err != nil {
			return nil, err
		}
		out = append(out, evaluated)
	}
	return out, nil
}

// Evaluate returns the provider with the values of its templates. It blocks as
// long as the functions of lookups. Errors name the argument, and never a value.
func (p *ProviderBlock) Evaluate(ctx context.Context, lookups Lookups) (driver.Provider, error) {
	out := driver.Provider{Name: p.Name, Alias: p.Alias}
	evaluate := func(text string) (string, error) {
		if !isTemplate(text) {
			return text, nil
		}
		return expand(text, func(function, name string) (string, error) {
			if function == "env" {
				return lookups.Env(name), nil
			}
			return lookups.Key(ctx, name)
		})
	}
	var err error
	if out.Body, err = items(p.block, p.body, evaluate, notArguments...); err != nil {
		return driver.Provider{}, err
	}
	for name, v := range p.env {
		text, err := evaluate(v.data.(string))
		if err != nil {
			return driver.Provider{}, &Error{v.file, v.line, p.block + ": task_env", name, err.Error()}
		}
		if out.Env == nil {
			out.Env = make(map[string]string)
		}
		out.Env[name] = text
	}
	return out, nil
}

// expand returns text with the results of its actions, {{ env "NAME" }} and
// {{ key "PATH" }}, which lookup returns. {{ "{{" }} is a literal. Other actions
// of Go templates are errors: the package that executes templates calls methods
// by their names, so that the linker must keep all methods of all types (10 MB).
func expand(text string, lookup func(function, name string) (string, error)) (string, error) {
	const name = "template" // in errors
	functions := map[string]any{"env": true, "key": true}
	trees, err := template.Parse(name, text, "", "", functions)
	if err != nil {
		functions["secret"] = true
		if _, withSecret := template.Parse(name, text, "", "", functions); withSecret == nil {
			return "", errors.New("secret is not supported: " + noVault)
		}
		return "", fmt.Errorf("%w: templates have the functions env and key", err)
	}
	var b strings.Builder
	for _, n := range trees[name].Root.Nodes {
		if t, ok := n.(*template.TextNode); ok {
			b.Write(t.Text)
			continue
		}
		function, argument, ok := call(n)
		if !ok {
			return "", fmt.Errorf(`%s is not supported: templates have {{ env "NAME" }} and {{ key "PATH" }}`, n)
		}
		value := argument
		if function != "" {
			if value, err = lookup(function, argument); err != nil {
				return "", fmt.Errorf("%s %q: %w", function, argument, err)
			}
		}
		b.WriteString(value)
	}
	return b.String(), nil
}

// call returns the parts of {{ FUNCTION "ARGUMENT" }} or {{ "ARGUMENT" }}.
func call(n template.Node) (function, argument string, ok bool) {
	action, ok := n.(*template.ActionNode)
	if !ok || len(action.Pipe.Decl) > 0 || len(action.Pipe.Cmds) != 1 {
		return "", "", false
	}
	args := action.Pipe.Cmds[0].Args
	if f, ok := args[0].(*template.IdentifierNode); ok {
		function, args = f.Ident, args[1:]
	}
	if len(args) != 1 {
		return "", "", false
	}
	text, ok := args[0].(*template.StringNode)
	if !ok {
		return "", "", false
	}
	return function, text.Text, true
}

// provider reads a block terraform_provider.
func (l *loader) provider(name string, b *block) {
	p := ProviderBlock{Name: name, Pos: b.pos.String(), block: b.name, body: b.members, env: make(map[string]value)}
	b.knowAll()
	b.string("alias", &p.Alias)
	var autoCommit bool
	b.bool("auto_commit", &autoCommit)
	if autoCommit {
		b.fail(b.at("auto_commit"), "auto_commit",
			"is not supported: commit in the module, or in a task with driver = \"exec\"")
	}
	check := func(text string) (string, error) {
		if !isTemplate(text) {
			return text, nil
		}
		_, err := expand(text, func(string, string) (string, error) { return "", nil })
		return text, err
	}
	b.nested("task_env", func(e *block) {
		for _, m := range e.members {
			e.known[m.name] = true
			text, ok := m.data.(string)
			if !ok {
				e.fail(m.pos, m.name, "must be a string")
				continue
			}
			if _, err := check(text); err != nil {
				e.fail(m.pos, m.name, "%v", err)
			}
			p.env[m.name] = m.value
		}
	})
	if _, err := items(b.name, b.members, check, notArguments...); err != nil {
		l.errs = append(l.errs, err)
	}
	same := func(q ProviderBlock) bool { return q.Name == p.Name && q.Alias == p.Alias }
	if i := slices.IndexFunc(l.cfg.Providers, same); i >= 0 {
		b.fail(b.pos, "", "%s has the same name and alias", l.cfg.Providers[i].Pos)
	}
	l.cfg.Providers = append(l.cfg.Providers, p)
}

// plainText is a function for items. It refuses templates.
func plainText(text string) (string, error) {
	if isTemplate(text) {
		return "", errors.New("only terraform_provider blocks may have templates")
	}
	return text, nil
}

// items returns the arguments and nested blocks of the block of that name,
// without those of the names in except. text converts each string. A member
// without "=" is a nested block if it is an object, or a list of objects.
func items(block string, o object, text func(string) (string, error), except ...string) ([]driver.Item, error) {
	var out []driver.Item
	for _, m := range o {
		if slices.Contains(except, m.name) {
			continue
		}
		if bodies := m.expand(); !m.assigned && isObject(bodies[0]) {
			for _, v := range bodies {
				body, err := items(block+": "+m.name, v.data.(object), text)
				if err != nil {
					return nil, err
				}
				out = append(out, driver.Item{Name: m.name, Body: body})
			}
			continue
		}
		raw, err := m.marshal(text)
		if err != nil {
			return nil, &Error{m.file, m.line, block, m.name, err.Error()}
		}
		out = append(out, driver.Item{Name: m.name, Value: raw})
	}
	return out, nil
}

func isObject(v value) bool { _, ok := v.data.(object); return ok }
