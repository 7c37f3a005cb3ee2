// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// policyRoutes need Config.Resources, and the right to read policies.
func (h *handler) policyRoutes() []route {
	return []route{{read, api.PolicyCheckPath, "Returns whether a caller may do something: ?as=NAME&verb=VERB&type=TYPE&name=NAME.",
		h.policyCheck}}
}

// checkedVerbs are the values of the parameter verb.
var checkedVerbs = []string{string(resource.VerbRead), string(resource.VerbList), string(resource.VerbWrite), string(resource.VerbDelete)}

func (h *handler) policyCheck(r *http.Request, q query) (response, error) {
	caller, err := h.callerNamed(q.values.Get("as"))
	if err != nil {
		return response{}, badRequest{err}
	}
	verb := q.values.Get("verb")
	if !slices.Contains(checkedVerbs, verb) {
		return response{}, badRequest{fmt.Errorf("bad verb %.30q: must be one of %s", verb, strings.Join(checkedVerbs, ", "))}
	}
	name, err := api.ParseResourceType(q.values.Get("type"))
	if err != nil {
		return response{}, badRequest{err}
	}
	typ := &pb.Type{Group: name.Group, GroupVersion: name.GroupVersion, Kind: name.Kind}
	out := api.PolicyDecision{Caller: caller.String()}
	err = h.Resources.Allow(policy.WithCaller(r.Context(), policy.Caller{Peer: caller}), resource.Verb(verb), typ, q.values.Get("name"))
	switch out.Permitted = err == nil; {
	case errors.Is(err, resource.ErrDenied):
		out.Reason = strings.TrimPrefix(err.Error(), resource.ErrDenied.Error()+": ")
	case err != nil:
		return response{}, err
	}
	return response{body: out}, nil
}

// callerNamed returns the caller with a name: a user of this datacenter,
// "anonymous", or node.role.datacenter.
func (h *handler) callerNamed(name string) (tlsutil.Peer, error) {
	parts := strings.Split(name, ".")
	text := string(tlsutil.RoleUser) + "/" + h.DC + "/" + name
	switch {
	case name == string(tlsutil.RoleAnonymous):
		text = name + "/" + h.DC + "/" + h.Node
	case len(parts) == 3 && parts[1] == tlsutil.RoleOperator.String():
		text = string(tlsutil.RoleOperator) + "/" + parts[2] + "/" + parts[0]
	case len(parts) == 3:
		text = parts[1] + "/" + parts[2] + "/" + parts[0]
	}
	p, ok := policy.Parse(text)
	if !ok {
		return p, fmt.Errorf("bad as %.200q: must be the name of a user, anonymous, or node.role.datacenter", name)
	}
	return p, nil
}
