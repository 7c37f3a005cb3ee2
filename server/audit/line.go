// SPDX-License-Identifier: MPL-2.0

package audit

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// Outcomes of a call.
const (
	OK      = "ok"
	Denied  = "denied"
	Failed  = "error"
	Dropped = "dropped" // not a call: Line.Count lines are missing here
)

// maxText bounds the method and the reason of a line, in bytes.
const maxText = 1024

// Line is one line of the audit log.
type Line struct {
	// Time is the time at which the call ended at this server, in UTC.
	Time time.Time `json:"time"`
	// Datacenter and Node name this server.
	Datacenter string `json:"datacenter"`
	Node       string `json:"node"`
	// Caller has made the request.
	Caller *Peer `json:"caller,omitempty"`
	// Via is the server of another datacenter that has named the caller.
	Via *Peer `json:"via,omitempty"`
	// Forwarder is the server of this datacenter that has received the call.
	Forwarder *Peer `json:"forwarder,omitempty"`
	// Address is ip:port of the caller. Empty if the call came through another
	// datacenter, whose own audit log has the address.
	Address string `json:"address,omitempty"`
	// Method is the gRPC method, or the method and the path of an HTTP request.
	Method string `json:"method,omitempty"`
	// Target names what an operator's call changes, if it is not a resource.
	Target string `json:"target,omitempty"`
	// Resources are the first resources that the call has used, and
	// MoreResources is the number of further ones.
	Resources     []Resource `json:"resources,omitempty"`
	MoreResources int        `json:"more_resources,omitempty"`
	// Outcome is OK, Denied, Failed or Dropped.
	Outcome string `json:"outcome"`
	// Reason is the text of a denial, or the kind of another error. The text of
	// another error may contain a value, so it is left out.
	Reason string `json:"reason,omitempty"`
	// Index is the index of the last write of the call in the store of this
	// datacenter. 0: the call wrote nothing there.
	Index uint64 `json:"index,omitempty"`
	// Count is the number of dropped lines.
	Count uint64 `json:"count,omitempty"`
}

// Peer is the identity in a certificate.
type Peer struct {
	// Role is operator, server, gateway, client, sync, user, or anonymous for a
	// caller without a certificate.
	Role       string `json:"role"`
	Datacenter string `json:"datacenter"`
	// Name is empty for an anonymous caller.
	Name string `json:"name,omitempty"`
}

// Resource is a resource that a call has used.
type Resource struct {
	Verb string `json:"verb"` // read, list, write, ...
	Type string `json:"type"` // group/version/Kind
	Name string `json:"name"` // for list: the beginning of all names
}

// lineOf returns the line of a call at server node of dc, without the time.
func lineOf(c *policy.Call, dc, node string) Line {
	l := Line{
		Datacenter: dc, Node: node, Caller: peerOf(c.Caller.Peer), Via: peerOf(c.Caller.Via), Forwarder: peerOf(c.Forwarder),
		Address: c.Addr, Method: limit(c.Method), Target: limit(c.Target), Outcome: OK, Index: c.Index(),
	}
	accesses, more := c.Accesses()
	l.MoreResources = more
	for _, a := range accesses {
		l.Resources = append(l.Resources, Resource{string(a.Verb), resource.TypeString(a.Type), a.Name})
	}
	err := resource.FromStatus(c.Err)
	switch {
	case err == nil:
	case errors.Is(err, resource.ErrDenied), status.Code(c.Err) == codes.PermissionDenied:
		text := err.Error()
		if st, ok := status.FromError(err); ok {
			text = st.Message()
		}
		l.Outcome, l.Reason = Denied, limit(strings.TrimPrefix(text, resource.ErrDenied.Error()+": "))
	default:
		l.Outcome, l.Reason = Failed, kindOf(err)
	}
	return l
}

// kindOf returns the kind of an error without its text.
func kindOf(err error) string {
	if text, ok := errors.AsType[interface {
		error
		Kind() string
	}](err); ok {
		return text.Kind()
	}
	if kind := resource.ErrorKind(err); kind != "" {
		return kind
	}
	return status.Code(err).String()
}

func peerOf(p tlsutil.Peer) *Peer {
	switch {
	case p == (tlsutil.Peer{}):
		return nil
	case p.Role == tlsutil.RoleAnonymous:
		return &Peer{Role: p.Role.String(), Datacenter: p.DC}
	}
	return &Peer{Role: p.Role.String(), Datacenter: p.DC, Name: p.Node}
}

func limit(s string) string { return s[:min(len(s), maxText)] }
