// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

// promotion is a federation whose primary changes.
type promotion struct {
	*documentWriters
	operators map[*lab.Node]pb.ResourceServiceClient
}

func (f promotion) at(s *lab.Node) pb.ResourceServiceClient {
	f.t.Helper()
	if f.operators[s] == nil {
		f.operators[s] = f.operator(s)
	}
	return f.operators[s]
}

// newPromotion starts one datacenter per argument, with that many servers and a
// gateway.
func newPromotion(t *testing.T, servers ...int) promotion {
	t.Helper()
	l := lab.New(t)
	for _, n := range servers {
		l.Add(n, 1)
	}
	for _, dc := range l.Datacenters() {
		for _, s := range dc.Servers {
			s.StartServer("--allow-remote-writes-from", "*")
		}
		dc.Gateways[0].StartGateway()
	}
	awaitWhole(t, l, 30*time.Second, "start")
	return promotion{&documentWriters{t: t, l: l}, map[*lab.Node]pb.ResourceServiceClient{}}
}

func (f promotion) dc(name string) *lab.Datacenter {
	i := slices.IndexFunc(f.l.Datacenters(), func(d *lab.Datacenter) bool { return d.Name == name })
	return f.l.Datacenters()[i]
}

// restart stops a server and starts it with another primary_datacenter.
func (f promotion) restart(s *lab.Node, primary string, args ...string) {
	f.t.Helper()
	s.Stop()
	f.start(s, primary, args...)
}

// start starts a server with a primary_datacenter.
func (f promotion) start(s *lab.Node, primary string, args ...string) {
	f.t.Helper()
	if s.DC().Name == "dc1" && len(args) == 0 {
		args = []string{"--primary-gateway", f.dc("dc2").Gateways[0].WANAddr()}
	}
	s.StartServer(append([]string{"--allow-remote-writes-from", "*", "--primary-datacenter", primary}, args...)...)
}

func (f promotion) await(what string, check func(ctx context.Context) error) {
	f.t.Helper()
	testutil.Await(f.t, promotionLimit, what, check)
}

// component waits until a component in the status of a server has the state,
// and a detail that contains the text.
func (f promotion) component(s *lab.Node, name, state, detail string) {
	f.t.Helper()
	f.await(fmt.Sprintf("%s: %s is %s, %q", s.WANName(), name, state, detail), func(ctx context.Context) error {
		return componentIs(ctx, s, name, state, detail)
	})
}

// leading is component for the leader of a datacenter. It checks all servers,
// because leadership may change while it waits.
func (f promotion) leading(dc *lab.Datacenter, name, state, detail string) {
	f.t.Helper()
	f.await(fmt.Sprintf("the leader of %s: %s is %s, %q", dc.Name, name, state, detail),
		func(ctx context.Context) error {
			var errs []error
			for _, s := range dc.Servers {
				err := componentIs(ctx, s, name, state, detail)
				if err == nil {
					return nil
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
}

// componentIs returns nil if the component has the state, and a detail that
// contains the text.
func componentIs(ctx context.Context, s *lab.Node, name, state, detail string) error {
	var st api.Status
	if err := s.Get(ctx, api.StatusPath, &st); err != nil {
		return err
	}
	for _, c := range st.Components {
		if c.Name == name && c.State == state && strings.Contains(c.Detail, detail) {
			return nil
		}
	}
	return fmt.Errorf("status of %s: %+v", s.WANName(), st.Components)
}

// primary waits until every server of the datacenters reports the given
// primary.
func (f promotion) primary(limit time.Duration, primary string, dcs ...*lab.Datacenter) {
	f.t.Helper()
	for _, dc := range dcs {
		for _, s := range dc.Servers {
			testutil.Await(f.t, limit, s.WANName()+" has the primary "+primary, func(ctx context.Context) error {
				var st api.Status
				if err := s.Get(ctx, api.StatusPath, &st); err != nil {
					return err
				}
				if st.PrimaryDatacenter != primary {
					return fmt.Errorf("primary of %s is %s: %+v", s.WANName(), st.PrimaryDatacenter, st.Components)
				}
				return nil
			})
		}
	}
}

func (f promotion) mustWrite(dc *lab.Datacenter, r *pb.Resource) *pb.Resource {
	f.t.Helper()
	out, err := f.write(f.at(dc.Servers[0]), r)
	if err != nil {
		f.t.Fatalf("write %s in %s: %v", r.Id.Name, dc.Name, err)
	}
	return out
}

// writeOnce writes r in dc without a retry.
func (f promotion) writeOnce(dc *lab.Datacenter, r *pb.Resource) error {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 5*time.Second)
	defer cancel()
	_, err := f.at(dc.Servers[0]).Write(ctx, &pb.WriteRequest{Resource: r})
	return err
}

func (f promotion) mustDelete(dc *lab.Datacenter, name string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := f.at(dc.Servers[0]).Delete(ctx, &pb.DeleteRequest{
		Id: &pb.ID{Type: document.Type, Name: name},
	}); err != nil {
		f.t.Fatalf("delete %s in %s: %v", name, dc.Name, err)
	}
}

// records returns the documents of a datacenter by name.
func (f promotion) records(dc *lab.Datacenter) map[string]*pb.Resource {
	f.t.Helper()
	out, err := f.list(f.t.Context(), dc)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f promotion) list(ctx context.Context, dc *lab.Datacenter) (map[string]*pb.Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := f.at(dc.Servers[0]).List(resource.WithConsistency(ctx, resource.Strong),
		&pb.ListRequest{Type: document.Type})
	out := map[string]*pb.Resource{}
	for _, r := range got.GetResources() {
		out[r.Id.Name] = r
	}
	return out, err
}

// sameDocuments reports whether two datacenters have documents of equal name,
// uid, generation and owner.
func sameDocuments(a, b map[string]*pb.Resource) bool {
	for name, r := range a {
		if b[name].GetId().GetUid() != r.Id.Uid || b[name].GetGeneration() != r.Generation ||
			b[name].GetOwner().GetUid() != r.GetOwner().GetUid() {
			return false
		}
	}
	return len(a) == len(b)
}

// same waits until the datacenters have the same documents.
func (f promotion) same(what string, dcs ...*lab.Datacenter) {
	f.t.Helper()
	f.await(what+": the same documents", func(ctx context.Context) error {
		first, err := f.list(ctx, dcs[0])
		if err != nil {
			return err
		}
		for _, dc := range dcs[1:] {
			got, err := f.list(ctx, dc)
			if err != nil {
				return err
			}
			if !sameDocuments(first, got) {
				return fmt.Errorf("%s has %d documents, %s has %d, and they differ", dcs[0].Name, len(first),
					dc.Name, len(got))
			}
		}
		return nil
	})
}

// keepWriting writes one document after the other in each datacenter, and
// ignores errors. stop returns the generations of the acknowledged documents by
// name.
func (f promotion) keepWriting(dcs ...*lab.Datacenter) (stop func() map[string]string) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[string]string{}
	for _, dc := range dcs {
		at := make([]pb.ResourceServiceClient, len(dc.Servers))
		for i, s := range dc.Servers {
			at[i] = f.at(s)
		}
		wg.Go(func() {
			done, failed, last := 0, map[codes.Code]int{}, map[codes.Code]string{}
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("w-%s-%d", dc.Name, i)
				tctx, tcancel := context.WithTimeout(ctx, 3*time.Second)
				out, err := at[i%len(at)].Write(tctx, &pb.WriteRequest{Resource: f.doc(name, i)})
				tcancel()
				if err == nil {
					mu.Lock()
					acked[name] = out.Resource.Generation
					mu.Unlock()
					done++
				} else if ctx.Err() == nil {
					failed[status.Code(err)]++
					last[status.Code(err)] = status.Convert(err).Message()
				}
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			f.t.Logf("%s: %d writes, failed %v, last errors %v", dc.Name, done, failed, last)
		})
	}
	return func() map[string]string {
		cancel()
		wg.Wait()
		return acked
	}
}
