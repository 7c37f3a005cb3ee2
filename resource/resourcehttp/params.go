// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// target is what a path names: a type, or a resource of it.
type target struct {
	reg  resource.Registration
	name string // empty: the type
}

// target reads group/version/kind[/name].
func (h *handler) target(path string) (target, error) {
	parts := strings.SplitN(path, "/", 4)
	if len(parts) < 3 {
		return target{}, badRequest("path %q: must be %sGROUP/VERSION/KIND, or that and a name; see /api/types", "/api/"+path, "/api/")
	}
	typ := &pb.Type{Group: parts[0], GroupVersion: parts[1], Kind: parts[2]}
	for _, reg := range h.Registry.Types() { // an exact match first
		if strings.EqualFold(reg.Type.Kind, typ.Kind) && reg.Type.Group == typ.Group && reg.Type.GroupVersion == typ.GroupVersion {
			typ.Kind = reg.Type.Kind
			break
		}
	}
	reg, err := h.Registry.Lookup(typ)
	if err != nil {
		return target{}, err
	}
	t := target{reg: reg}
	if len(parts) == 4 {
		t.name = parts[3]
	}
	return t, nil
}

// operation is what can be done with a target.
type operation struct {
	name   string // in errors
	params []string
	do     func(q *request) error
}

var tenancyParams = []string{"partition", "namespace"}

var (
	opList   = operation{"a list", append([]string{"prefix", "consistent", "watch"}, tenancyParams...), (*request).list}
	opRead   = operation{"a read", append([]string{"uid", "consistent", "owned"}, tenancyParams...), (*request).read}
	opWrite  = operation{"a write", append([]string{"version", "uid", "dry-run", "status"}, tenancyParams...), (*request).write}
	opDelete = operation{"a deletion", append([]string{"version", "uid"}, tenancyParams...), (*request).delete}
)

// operation returns what r wants; nil, and which methods there are, if that is nothing.
func (t target) operation(r *http.Request) (op *operation, allowed string) {
	switch {
	case isGet(r) && t.name == "":
		return &opList, ""
	case t.name == "":
		return nil, "GET, HEAD"
	case isGet(r):
		return &opRead, ""
	case r.Method == http.MethodPut:
		return &opWrite, ""
	case r.Method == http.MethodDelete:
		return &opDelete, ""
	}
	return nil, "GET, HEAD, PUT, DELETE"
}

// query has the parameters of a request.
type query struct {
	dc, prefix, uid, version, status         string
	partition, namespace                     string
	consistent, watch, owned, dryRun, pretty bool
}

// parse reads the parameters of an operation; params are those it has besides dc and pretty.
func parse(raw, op string, params []string) (query, error) {
	var q query
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, badRequest("query string: %w", err)
	}
	texts := map[string]*string{
		"dc": &q.dc, "prefix": &q.prefix, "uid": &q.uid, "version": &q.version, "status": &q.status, "partition": &q.partition, "namespace": &q.namespace,
	}
	flags := map[string]*bool{"consistent": &q.consistent, "watch": &q.watch, "owned": &q.owned, "dry-run": &q.dryRun, "pretty": &q.pretty}
	known := append([]string{"dc", "pretty"}, params...)
	for name, all := range values {
		switch text, flag := texts[name], flags[name]; {
		case !slices.Contains(known, name):
			return q, badRequest("parameter %.100q: %s knows %s", name, op, strings.Join(known, ", "))
		case len(all) > 1:
			return q, badRequest("parameter %s: is given %d times", name, len(all))
		case text != nil:
			*text = all[0]
		case all[0] == "":
			*flag = true
		default:
			if *flag, err = strconv.ParseBool(all[0]); err != nil {
				return q, badRequest("parameter %s %.100q: must be 1 or 0", name, all[0])
			}
		}
	}
	if q.watch && q.consistent {
		return q, badRequest("parameters watch and consistent: a watch is of what the server has applied; leave one of them out")
	}
	return q, nil
}
