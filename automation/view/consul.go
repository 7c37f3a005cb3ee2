// SPDX-License-Identifier: MPL-2.0

package view

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/backoff"
)

// Kinds of feeds of an agent of Consul.
const (
	feedServices = "services"   // instances of the services that prefix lists
	feedPattern  = "pattern"    // instances of the services that the expression prefix matches
	feedTags     = "tags"       // names and tags, by the metadata of nodes in prefix
	feedNodes    = "nodes"      //
	feedKey1     = "single-key" // the key prefix
)

const (
	// maxQueries bounds the queries that block at an agent, which accepts 200
	// connections of one address by default. More queries take turns, so each
	// response is late by at most consul.Wait for each 128 queries.
	maxQueries = 128
	// maxReads bounds the concurrent reads of the services of a pattern.
	maxReads = 8
	// pollServices is the number of services of a pattern that are read again
	// when consul.Wait has passed without a change of a service.
	pollServices = 256
)

// consulAgent is the source of an agent of Consul.
type consulAgent struct {
	*api.Client
	wait  time.Duration // the longest time that a query blocks
	slots *semaphore.Weighted
}

// NewConsul returns Views of the data of an agent of Consul. It has no data of
// the kinds that only wanfed has. The caller closes c when the Views have ended.
func NewConsul(c *api.Client, cfg Config) (*Views, error) {
	if c == nil {
		return nil, errors.New("views of Consul need an agent")
	}
	cfg.Datacenter = ""
	v := newViews(cfg)
	v.agent = &consulAgent{c, consul.Wait, semaphore.NewWeighted(maxQueries)}
	return v, nil
}

// consulFeedOf returns the feed of a normalized query.
func consulFeedOf(q *pb.TaskQuery) (feedKey, error) {
	key := feedKey{dc: q.Datacenter}
	switch q.Kind {
	case task.KindServices:
		key.kind, key.prefix = feedServices, strings.Join(q.Names, "\x00")
		if len(q.Names) == 0 {
			key.kind, key.prefix = feedPattern, q.GetRegexp()
		}
	case task.KindCatalogServices:
		meta := url.Values{}
		for name, value := range q.NodeMeta {
			meta.Set(name, value)
		}
		key.kind, key.prefix = feedTags, meta.Encode() // ordered by name
	case task.KindNodes:
		key.kind = feedNodes
	case task.KindKV:
		key.kind, key.prefix = feedKeys, q.Path
		if !q.Recurse {
			key.kind, key.prefix = feedKey1, q.Names[0]
		}
	}
	return key, CheckConsul(q.Kind)
}

// CheckConsul returns an error for a kind of data that Consul does not have.
func CheckConsul(kind string) error {
	switch kind {
	case task.KindServices, task.KindCatalogServices, task.KindNodes, task.KindKV, task.KindSchedule:
		return nil
	}
	return errors.New("Consul does not have this data, and wanfed.source of the daemon is consul: use a daemon whose source is wanfed")
}

// open adds the mirror and the streams of a feed.
func (c *consulAgent) open(f *feed) {
	dc := f.key.dc
	switch f.key.kind {
	case feedServices:
		f.mirror = newCatalogMirror(dc)
		for name := range strings.SplitSeq(f.key.prefix, "\x00") {
			f.addStream("service "+name, query(c, func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
				q.Datacenter = dc
				return c.instances(ctx, name, q)
			}))
		}
	case feedPattern:
		f.mirror = newCatalogMirror(dc)
		f.addStream("services", c.pattern(dc, regexp.MustCompile(f.key.prefix))) // newView has compiled it
	case feedTags:
		f.mirror = newRecordMirror(renderJSON)
		f.addStream("service names", query(c, c.tags(dc, f.key.prefix)))
	case feedNodes:
		f.mirror = newCatalogMirror(dc)
		f.addStream("nodes", query(c, c.nodes(dc)))
		f.addStream("checks of nodes", query(c, c.nodeChecks(dc)))
	case feedKeys:
		f.mirror = newRecordMirror(renderKey)
		f.addStream("keys", query(c, c.keys(dc, f.key.prefix)))
	case feedKey1:
		f.mirror = newRecordMirror(renderKey)
		f.addStream("key", query(c, c.key(dc, f.key.prefix)))
	}
}

// read reads all records of a stream, by unique names.
type read func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error)

// query returns a stream of the records that a blocking query returns.
func query(c *consulAgent, read read) func(context.Context) iter.Seq2[event, error] {
	return func(ctx context.Context) iter.Seq2[event, error] {
		return func(yield func(event, error) bool) {
			var last map[string]*record
			for now, err := range consul.Repeat(ctx, c.wait, c.limited(read)) {
				if err != nil {
					yield(event{}, err)
					return
				}
				for ev := range difference(last, now) {
					if !yield(ev, nil) {
						return
					}
				}
				last = now
			}
		}
	}
}

// limited returns read with a slot, and with remedies in its errors.
func (c *consulAgent) limited(read read) read {
	return func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
		if err := c.slots.Acquire(ctx, 1); err != nil {
			return nil, api.QueryMeta{}, err
		}
		defer c.slots.Release(1)
		now, meta, err := read(ctx, q)
		return now, meta, c.check(len(now), meta, err)
	}
}

// check returns the error of a response, or that of a response without data
// that may be wrong: a daemon must not remove what it cannot read.
func (c *consulAgent) check(found int, meta api.QueryMeta, err error) error {
	switch {
	case err != nil:
		return consul.Remedies{
			Token:   "set consul.token to a token with read on the services, nodes and keys of the tasks",
			Connect: "check consul.address and consul.tls",
		}.Explain(err)
	case found == 0 && meta.Filtered:
		return errors.New("the token may not read any of the data: set consul.token to a token with read on it")
	case found == 0 && meta.Index == 0:
		return fmt.Errorf("the response of %s has no index: check that consul.address is that of an agent of Consul", c.Addr())
	}
	return nil
}

// instances reads the instances of a service.
func (c *consulAgent) instances(ctx context.Context, name string, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
	entries, meta, err := c.ServiceHealth(ctx, name, q)
	if err != nil {
		return nil, meta, err
	}
	out := map[string]*record{}
	// Several services of a node have its record. Their names differ.
	put := func(index uint64, data any, parts ...string) {
		key := strings.Join(append(parts, name), "\x00")
		out[key] = &record{name: key, index: index, data: data}
	}
	for _, e := range entries {
		put(e.Node.ModifyIndex, nodeOf(e.Node), "node", e.Node.Node)
		put(e.Service.ModifyIndex, serviceOf(e), "service", e.Node.Node, e.Service.ID)
		for _, check := range e.Checks {
			put(check.ModifyIndex, checkOf(check), "check", e.Node.Node, check.ServiceID, check.CheckID)
		}
	}
	return out, meta, nil
}

func nodeOf(n api.Node) *pb.Node {
	return &pb.Node{Id: n.ID, Node: n.Node, Address: n.Address, Datacenter: n.Datacenter, TaggedAddresses: n.TaggedAddresses, Meta: n.Meta}
}

func serviceOf(e api.ServiceEntry) *pb.Service {
	s := e.Service
	out := &pb.Service{Node: e.Node.Node, Kind: s.Kind, Id: s.ID, Service: s.Service, Tags: s.Tags, Address: s.Address,
		Port: uint32(max(s.Port, 0)), Meta: s.Meta, WeightPassing: uint32(max(s.Weights.Passing, 0)),
		WeightWarning: uint32(max(s.Weights.Warning, 0)), EnableTagOverride: s.EnableTagOverride}
	for tag, a := range s.TaggedAddresses {
		if out.TaggedAddresses == nil {
			out.TaggedAddresses = map[string]*pb.Address{}
		}
		out.TaggedAddresses[tag] = &pb.Address{Address: a.Address, Port: uint32(max(a.Port, 0))}
	}
	return out
}

func checkOf(c api.Check) *pb.Check {
	return &pb.Check{Node: c.Node, CheckId: c.CheckID, Name: c.Name, Status: c.Status, Notes: c.Notes, Output: c.Output,
		ServiceId: c.ServiceID, ServiceName: c.ServiceName, Type: c.Type, Interval: c.Interval, Timeout: c.Timeout}
}

// names is the result of a query for the names of services.
type names struct {
	matching []string
	index    uint64
}

// pattern returns a stream of the instances of all services whose names match.
// A change of any service ends the query for the names, and then all matching
// services are read. Otherwise some of them are read, because a change of a check
// does not end the query.
func (c *consulAgent) pattern(dc string, re *regexp.Regexp) func(context.Context) iter.Seq2[event, error] {
	readNames := func(ctx context.Context, q api.QueryOptions) (names, api.QueryMeta, error) {
		q.Datacenter = dc
		if err := c.slots.Acquire(ctx, 1); err != nil {
			return names{}, api.QueryMeta{}, err
		}
		defer c.slots.Release(1)
		tags, meta, err := c.ServiceNames(ctx, nil, q)
		out := names{index: meta.Index}
		for name := range tags {
			if re.MatchString(name) {
				out.matching = append(out.matching, name)
			}
		}
		slices.Sort(out.matching)
		return out, meta, c.check(len(tags), meta, err)
	}
	return func(ctx context.Context) iter.Seq2[event, error] {
		return func(yield func(event, error) bool) {
			s := sweep{agent: c, dc: dc, services: map[string]map[string]*record{}}
			for now, err := range consul.Repeat(ctx, c.wait, readNames) {
				began := time.Now()
				if err == nil {
					err = s.next(ctx, now)
				}
				if err != nil {
					yield(event{}, err)
					return
				}
				for ev := range difference(s.last, s.now) {
					if !yield(ev, nil) {
						return
					}
				}
				s.last = s.now
				backoff.Sleep(ctx, time.Since(began), nil) // reading takes at most half of the time
			}
		}
	}
}

// sweep reads the services of a pattern again and again.
type sweep struct {
	agent     *consulAgent
	dc        string
	index     uint64                        // of the last names
	services  map[string]map[string]*record // records of each service, by name
	after     string                        // the last service that was read without a change
	last, now map[string]*record
}

// next reads services and sets now.
func (s *sweep) next(ctx context.Context, n names) error {
	due := n.matching
	if n.index == s.index && len(due) > pollServices {
		from, _ := slices.BinarySearch(due, s.after+"\x00")
		due = slices.Concat(due[from:], due[:from])[:pollServices]
		s.after = due[len(due)-1]
	}
	results := make([]map[string]*record, len(due))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxReads)
	for i, name := range due {
		g.Go(func() error {
			records, meta, err := s.agent.instances(gctx, name, api.QueryOptions{Datacenter: s.dc})
			results[i] = records
			return s.agent.check(len(records), meta, err)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	s.index = n.index
	for name := range s.services {
		if _, ok := slices.BinarySearch(n.matching, name); !ok {
			delete(s.services, name)
		}
	}
	for i, name := range due {
		s.services[name] = results[i]
	}
	s.now = map[string]*record{}
	for _, records := range s.services {
		maps.Copy(s.now, records)
	}
	return nil
}

// tags reads the names and tags of services. meta is the encoded metadata that
// nodes must have.
func (c *consulAgent) tags(dc, meta string) read {
	values, _ := url.ParseQuery(meta) // consulFeedOf has encoded it
	nodeMeta := map[string]string{}
	for name := range values {
		nodeMeta[name] = values.Get(name)
	}
	return func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
		q.Datacenter = dc
		tags, meta, err := c.ServiceNames(ctx, nodeMeta, q)
		out := map[string]*record{}
		for name, t := range tags {
			out[name] = &record{name: name, data: append([]string{}, slices.Sorted(slices.Values(t))...)}
		}
		return out, meta, err
	}
}

func (c *consulAgent) nodes(dc string) read {
	return func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
		q.Datacenter = dc
		nodes, meta, err := c.Nodes(ctx, q)
		out := map[string]*record{}
		for _, n := range nodes {
			out[n.Node] = &record{name: n.Node, index: n.ModifyIndex, data: nodeOf(n)}
		}
		return out, meta, err
	}
}

func (c *consulAgent) nodeChecks(dc string) read {
	return func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
		q.Datacenter = dc
		checks, meta, err := c.NodeChecks(ctx, q)
		out := map[string]*record{}
		for _, check := range checks {
			key := check.Node + "\x00" + check.CheckID
			out[key] = &record{name: key, index: check.ModifyIndex, data: checkOf(check)}
		}
		return out, meta, err
	}
}

func (c *consulAgent) keys(dc, prefix string) read {
	return func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
		q.Datacenter = dc
		keys, meta, err := c.Keys(ctx, prefix, q)
		return recordsOf(keys), meta, err
	}
}

func (c *consulAgent) key(dc, name string) read {
	return func(ctx context.Context, q api.QueryOptions) (map[string]*record, api.QueryMeta, error) {
		q.Datacenter = dc
		k, meta, err := c.ReadKey(ctx, name, q)
		if k == nil {
			return nil, meta, err
		}
		return recordsOf([]api.Key{*k}), meta, err
	}
}

func recordsOf(keys []api.Key) map[string]*record {
	out := map[string]*record{}
	for _, k := range keys {
		out[k.Key] = &record{name: k.Key, index: k.ModifyIndex, data: &pb.KVEntry{Value: k.Value, Flags: k.Flags}}
	}
	return out
}
