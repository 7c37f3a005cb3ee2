// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
	"github.com/wanfed/wanfed/tlsutil"
)

// documentWriters writes federated resources in a federation of two
// datacenters. Its clients have certificates of operators.
type documentWriters struct {
	t         *testing.T
	l         *lab.Lab
	primary   []pb.ResourceServiceClient // one per server of the primary
	secondary pb.ResourceServiceClient   // connected to the server of the secondary
}

// operator returns a client that is connected to s.
func (f *documentWriters) operator(s *lab.Node) pb.ResourceServiceClient {
	f.t.Helper()
	return pb.NewResourceServiceClient(operatorAt(f.t, s, f.identity(s)))
}

// identity returns the identity of an operator of the datacenter of s.
func (f *documentWriters) identity(s *lab.Node) *tlsutil.Identity {
	f.t.Helper()
	files, err := f.l.PKI.Issue(tlsutil.RoleOperator, s.DC().Name, "cli-"+s.Name)
	if err != nil {
		f.t.Fatal(err)
	}
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, quiet)
	if err != nil {
		f.t.Fatal(err)
	}
	return id
}

// doc returns a document of about 100 bytes.
func (f *documentWriters) doc(name string, n int) *pb.Resource {
	f.t.Helper()
	content, err := structpb.NewValue(map[string]any{"number": n, "text": strings.Repeat("x", 100)})
	if err != nil {
		f.t.Fatal(err)
	}
	r, err := resource.New(document.Type, name, &pb.Document{Content: content})
	if err != nil {
		f.t.Fatal(err)
	}
	r.Id.Uid = ""
	return r
}

// write writes r and retries while the primary has no leader.
func (f *documentWriters) write(at pb.ResourceServiceClient, r *pb.Resource) (*pb.Resource, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	for {
		tctx, tcancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := at.Write(tctx, &pb.WriteRequest{Resource: r})
		tcancel()
		if err == nil {
			return out.Resource, nil
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.Unknown &&
			code != codes.DeadlineExceeded || ctx.Err() != nil {
			return nil, err
		}
		<-time.After(50 * time.Millisecond)
	}
}

// writeAll writes documents from 16 clients concurrently, and returns when all
// are acknowledged.
func (f *documentWriters) writeAll(prefix string, from, to int) {
	f.t.Helper()
	var wg sync.WaitGroup
	const clients = 16
	for c := range clients {
		wg.Go(func() {
			for i := from + c; i < to; i += clients {
				if _, err := f.write(f.primary[0], f.doc(fmt.Sprint(prefix, i), i)); err != nil {
					f.t.Errorf("write of document %s%d = %v, want nil", prefix, i, err)
				}
			}
		})
	}
	wg.Wait()
}

// arrivals watches documents in the secondary whose names begin with prefix.
// The channel returns the times of n changes, or of fewer if ctx ends first, by
// name and generation.
func (f *documentWriters) arrivals(ctx context.Context, prefix string, n int) <-chan map[string]time.Time {
	f.t.Helper()
	stream, err := f.secondary.WatchList(ctx, &pb.WatchListRequest{Type: document.Type, NamePrefix: prefix})
	if err != nil {
		f.t.Fatal(err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			f.t.Fatal(err)
		}
		if e.GetEndOfSnapshot() != nil {
			break
		}
	}
	done := make(chan map[string]time.Time, 1)
	go func() {
		at := map[string]time.Time{}
		for len(at) < n {
			e, err := stream.Recv()
			if err != nil {
				break
			}
			if r := e.GetUpsert().GetResource(); r != nil {
				at[r.Id.Name+"@"+r.Generation] = time.Now()
			}
		}
		done <- at
	}()
	return done
}

// same waits until the secondary has the same documents as the primary.
func (f *documentWriters) same(what string) {
	f.t.Helper()
	took := testutil.Await(f.t, 40*time.Second, what, func(ctx context.Context) error {
		var lists []map[string]string
		for _, at := range []pb.ResourceServiceClient{f.primary[0], f.secondary} {
			out, err := at.List(resource.WithConsistency(ctx, resource.Strong), &pb.ListRequest{Type: document.Type})
			if err != nil {
				return err
			}
			m := map[string]string{}
			for _, r := range out.Resources {
				m[r.Id.Name] = r.Id.Uid + " " + r.Generation
			}
			lists = append(lists, m)
		}
		for name, there := range lists[0] {
			if lists[1][name] != there {
				return fmt.Errorf("%s in the secondary is %q, want %q", name, lists[1][name], there)
			}
		}
		if len(lists[0]) != len(lists[1]) {
			return fmt.Errorf("the secondary has %d documents, want %d", len(lists[1]), len(lists[0]))
		}
		return nil
	})
	f.t.Logf("%s: the replicas are up to date after %v", what, ms(took))
}

// names returns the names and generations of all documents of the primary.
func (f *documentWriters) names() []string {
	f.t.Helper()
	out, err := f.primary[0].List(resource.WithConsistency(f.t.Context(), resource.Strong),
		&pb.ListRequest{Type: document.Type})
	if err != nil {
		f.t.Fatal(err)
	}
	var names []string
	for _, r := range out.Resources {
		names = append(names, r.Id.Name+" "+r.Generation)
	}
	return names
}

// metricOf returns the value of a metric without labels of a server.
func metricOf(t *testing.T, s *lab.Node, name string) float64 {
	t.Helper()
	return metricAt(t, s, "127.0.0.1:8500", name)
}

// metricAt is metricOf for an address (host:port) in the namespace of a node.
func metricAt(t *testing.T, s *lab.Node, addr, name string) float64 {
	t.Helper()
	tr := &http.Transport{DialContext: lab.DialIn(s.NS)}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("%s has no metric %s", s.Name, name)
	return 0
}
