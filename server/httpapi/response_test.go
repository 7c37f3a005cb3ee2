// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// blockedWriter is the connection of a client that does not read until freed.
type blockedWriter struct {
	*httptest.ResponseRecorder
	began *sync.WaitGroup // of writes
	freed <-chan struct{}
}

func (s blockedWriter) Write(b []byte) (int, error) {
	s.began.Done()
	<-s.freed
	return len(b), nil
}

// A client that does not read its large responses gets only small responses,
// from any datacenter. Other clients get all responses.
func TestSendLarge_UnreadResponsesOfOnePeer(t *testing.T) {
	cluster := newFakeCluster()
	for range 2 * largeResponse / 20 {
		cluster.datacenters = append(cluster.datacenters, "dc-of-some-length")
	}
	cluster.query = func(context.Context, string, *pb.QueryRequest) (*pb.QueryResponse, error) {
		return &pb.QueryResponse{Status: 200, Body: make([]byte, 2*largeResponse)}, nil
	}
	h := newHandler(t, cluster)
	const large = "/v1/catalog/datacenters"
	request := func(node, path string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = "localhost"
		return r.WithContext(tlsutil.WithPeer(t.Context(),
			tlsutil.Peer{Role: tlsutil.RoleClient, Node: node, DC: "dc1"}))
	}
	check := func(name, node string, want map[string]int) {
		t.Helper()
		for path, status := range want {
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, request(node, path)); w.Code != status {
				t.Errorf("%s: GET %s = %d, want %d", name, path, w.Code, status)
			}
		}
	}
	all := map[string]int{large: 200, large + "?dc=dc2": 200, "/v1/status/leader": 200}
	freed := make(chan struct{})
	var began, ended sync.WaitGroup
	began.Add(maxLarge)
	for i := range maxLarge {
		path := large
		if i%2 == 0 {
			path += "?dc=dc2"
		}
		ended.Go(func() { h.ServeHTTP(blockedWriter{httptest.NewRecorder(), &began, freed}, request("slow", path)) })
	}
	began.Wait()
	check("a client that does not read", "slow", map[string]int{
		large: 503, large + "?dc=dc2": 503, "/v1/status/leader": 200,
	})
	check("another client", "other", all)
	close(freed)
	ended.Wait()
	check("a client that has read all", "slow", all)
}
