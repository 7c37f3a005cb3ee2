// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/session"
)

// sessionRequest is the body of /v1/session/create, which may be absent.
type sessionRequest struct {
	ID, Name, Node, TTL, Behavior string
	LockDelay                     *lockDelay
	// Checks is the older name of NodeChecks.
	Checks, NodeChecks   []string
	ServiceChecks        []struct{ ID, Namespace string }
	Namespace, Partition string
}

// lockDelay is a duration such as "15s", or a number. As in Consul, a number
// below 1000 has the unit second, and other numbers nanosecond.
type lockDelay time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *lockDelay) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err == nil {
		parsed, err := time.ParseDuration(text)
		*d = lockDelay(parsed)
		return err
	}
	var n int64
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("LockDelay %.63s: must be a duration such as 15s", b)
	}
	if n < 1000 {
		n *= int64(time.Second)
	}
	*d = lockDelay(n)
	return nil
}

// sessionEntry is a session in Consul's JSON.
type sessionEntry struct {
	ID            string
	Name          string
	Node          string
	LockDelay     time.Duration
	Behavior      string
	TTL           string
	NodeChecks    []string
	ServiceChecks []serviceCheck
	CreateIndex   uint64
	ModifyIndex   uint64
}

type serviceCheck struct{ ID, Namespace string }

func sessionEntryOf(s session.Session) sessionEntry {
	out := sessionEntry{
		ID: s.ID, Name: s.Name, Node: s.Node, LockDelay: s.GetLockDelay().AsDuration(), Behavior: s.Behavior,
		NodeChecks: s.NodeChecks, CreateIndex: s.CreateIndex, ModifyIndex: s.ModifyIndex,
	}
	if s.Ttl != nil {
		out.TTL = s.Ttl.AsDuration().String()
	}
	for _, id := range s.ServiceChecks {
		out.ServiceChecks = append(out.ServiceChecks, serviceCheck{ID: id})
	}
	return out
}

func (h *handler) sessionCreate(r *http.Request, q query) (response, error) {
	if err := q.reject("ns", "partition"); err != nil {
		return response{}, err
	}
	var req sessionRequest
	if len(q.body) > 0 {
		if err := decodeBody(q.body, &req, "object"); err != nil {
			return response{}, err
		}
	}
	s, err := req.session()
	if err != nil {
		return response{}, badRequest{err}
	}
	s.Node = cmp.Or(s.Node, h.Node)
	id := ""
	err = untilLeader(r.Context(), func(ctx context.Context) (err error) {
		id, err = h.sessions.Create(ctx, s, s.Node != h.Node)
		return err
	})
	return response{body: struct{ ID string }{id}}, err
}

func (req sessionRequest) session() (*pb.Session, error) {
	if req.Namespace != "" || req.Partition != "" {
		return nil, errors.New("Namespace and Partition are not supported: leave them out")
	}
	s := &pb.Session{Name: req.Name, Node: req.Node, Behavior: req.Behavior, NodeChecks: req.Checks}
	if req.NodeChecks != nil {
		s.NodeChecks = req.NodeChecks
	}
	for _, c := range req.ServiceChecks {
		s.ServiceChecks = append(s.ServiceChecks, c.ID)
	}
	if req.LockDelay != nil {
		s.LockDelay = durationpb.New(time.Duration(*req.LockDelay))
	}
	if req.TTL != "" {
		ttl, err := time.ParseDuration(req.TTL)
		if err != nil {
			return nil, fmt.Errorf("bad TTL %.63q: must be a duration such as 15s", req.TTL)
		}
		if ttl != 0 { // as in Consul, 0 means that there is none
			s.Ttl = durationpb.New(ttl)
		}
	}
	return s, nil
}

func (h *handler) sessionDestroy(r *http.Request, q query) (response, error) {
	if err := q.reject("ns", "partition"); err != nil {
		return response{}, err
	}
	err := untilLeader(r.Context(), func(ctx context.Context) error {
		return h.sessions.Destroy(ctx, r.PathValue("id"))
	})
	return response{body: true}, err
}

func (h *handler) sessionRenew(r *http.Request, q query) (response, error) {
	if err := q.reject("ns", "partition"); err != nil {
		return response{}, err
	}
	id := r.PathValue("id")
	var s *session.Session
	err := untilLeader(r.Context(), func(ctx context.Context) error {
		found, err := h.sessions.Renew(ctx, id)
		if err != nil || !found {
			return err
		}
		s, _, err = h.sessions.Get(ctx, resource.Eventual, id)
		if err == nil && s == nil { // this server has not applied the creation yet
			s, _, err = h.sessions.Get(ctx, resource.Strong, id)
		}
		return err
	})
	if err == nil && s == nil {
		err = statusError{http.StatusNotFound, fmt.Sprintf("Session id '%.63s' not found", id)}
	}
	if err != nil {
		return response{}, err
	}
	return response{body: []sessionEntry{sessionEntryOf(*s)}}, nil
}

func (h *handler) sessionInfo(r *http.Request, q query) (response, error) {
	id := r.PathValue("id")
	return h.listSessions(r.Context(), q, id, func(ctx context.Context, c resource.Consistency) ([]session.Session, uint64, error) {
		s, index, err := h.sessions.Get(ctx, c, id)
		if s == nil {
			return nil, index, err
		}
		return []session.Session{*s}, index, err
	})
}

func (h *handler) sessionList(r *http.Request, q query) (response, error) {
	return h.listSessions(r.Context(), q, "", h.sessions.List)
}

func (h *handler) sessionNode(r *http.Request, q query) (response, error) {
	node := r.PathValue("node")
	return h.listSessions(r.Context(), q, "", func(ctx context.Context, c resource.Consistency) ([]session.Session, uint64, error) {
		all, index, err := h.sessions.List(ctx, c)
		return slices.DeleteFunc(all, func(s session.Session) bool { return s.Node != node }), index, err
	})
}

// listSessions returns the result of list. A blocking query waits for a change
// of the session with an id, or with an empty id of any session.
func (h *handler) listSessions(ctx context.Context, q query, id string,
	list func(ctx context.Context, c resource.Consistency) ([]session.Session, uint64, error),
) (response, error) {
	if err := q.reject("ns", "partition"); err != nil {
		return response{}, err
	}
	all, index, err := blocking(ctx, q, list,
		func(ctx context.Context, after uint64) error { return h.sessions.Wait(ctx, id, after) },
		func(a, b []session.Session) bool {
			return slices.EqualFunc(a, b, func(x, y session.Session) bool {
				return x.ID == y.ID && x.ModifyIndex == y.ModifyIndex
			})
		})
	if err != nil {
		return response{}, err
	}
	out := make([]sessionEntry, len(all))
	for i, s := range all {
		out[i] = sessionEntryOf(s)
	}
	return response{body: out, index: index}, nil
}
