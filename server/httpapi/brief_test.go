// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
)

// What is said in brief is what the headers said; what cannot be said so is not.
func TestBrief(t *testing.T) {
	usual := func(change func(h http.Header)) http.Header {
		h := http.Header{api.HeaderIndex: {"18446744073709551615"}, api.HeaderKnownLeader: {"true"}, api.HeaderLastContact: {"7"}}
		change(h)
		return h
	}
	for name, tt := range map[string]struct {
		header http.Header
		brief  bool
	}{
		"usual":        {usual(func(http.Header) {}), true},
		"no leader":    {usual(func(h http.Header) { h.Set(api.HeaderKnownLeader, "false") }), true},
		"no index":     {usual(func(h http.Header) { h.Del(api.HeaderIndex) }), true},
		"index 0":      {usual(func(h http.Header) { h.Set(api.HeaderIndex, "0") }), false},
		"bad index":    {usual(func(h http.Header) { h.Set(api.HeaderIndex, "-1") }), false},
		"no contact":   {usual(func(h http.Header) { h.Del(api.HeaderLastContact) }), false},
		"bad contact":  {usual(func(h http.Header) { h.Set(api.HeaderLastContact, "1s") }), false},
		"who leads?":   {usual(func(h http.Header) { h.Del(api.HeaderKnownLeader) }), false},
		"with a cause": {usual(func(h http.Header) { h.Set(api.HeaderCause, "x") }), false},
		"nothing":      {http.Header{}, false},
	} {
		b := metaOf(tt.header)
		if (b != nil) != tt.brief {
			t.Errorf("%s: %v", name, b)
		}
		if b == nil {
			continue
		}
		got := http.Header{}
		putMeta(got, b)
		if d := cmp.Diff(tt.header, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// An asker of an earlier version, which does not know the brief form, gets headers.
func TestAnswerInFull(t *testing.T) {
	_, dc2, _ := twoDatacenters(t)
	for _, brief := range []bool{false, true} {
		resp, err := Serve(t.Context(), dc2, &pb.QueryRequest{Path: "/v1/status/leader", Brief: brief})
		if err != nil || (resp.GetBrief() != nil) != brief || (len(resp.GetHeaders()) > 0) == brief {
			t.Errorf("brief %v: %v, %v", brief, resp, err)
		}
	}
}
