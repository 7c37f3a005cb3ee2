// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/kv"
)

func TestTxn_Responses(t *testing.T) {
	r := newStoreHandler(t)
	for _, test := range []struct {
		target, body string
		status       int
		want         string // prefix of the body
	}{
		{"", `[]`, 200, `{"Results":[],"Errors":null}`},
		{"", `[{"KV": {"Verb": "set", "Key": "a", "Value": "djE=", "Flags": 7}}, {"KV": {"Verb": "get", "Key": "a"}}]`,
			200,
			`{"Results":[{"KV":{"LockIndex":0,"Key":"a","Flags":7,"Value":null,"CreateIndex":2,"ModifyIndex":2}},` +
				`{"KV":{"LockIndex":0,"Key":"a","Flags":7,"Value":"djE=","CreateIndex":2,"ModifyIndex":2}}],` +
				`"Errors":null}`},
		{"?stale", `[{"KV": {"Verb": "get-or-empty", "Key": "b"}}]`, 200,
			`{"Results":[{"KV":{"LockIndex":0,"Key":"b","Flags":0,"Value":null,"CreateIndex":0,"ModifyIndex":0}}],` +
				`"Errors":null}`},
		{"", `[{"KV": {"Verb": "delete", "Key": "a"}}, {"KV": {"Verb": "check-index", "Key": "a", "Index": 2}}]`, 409,
			`{"Results":null,"Errors":[{"OpIndex":1,"What":"key \"a\" doesn't exist"}]}`},
		{"?pretty", `[{"KV": {"Verb": "delete-cas", "Key": "a", "Index": 2}}]`, 200, "{\n    \"Results\": [],"},
		{"", ``, 400, "request decode failed"},
		{"", `{}`, 400, "request decode failed"},
		{"", `[] []`, 400, "request decode failed"},
		{"", `[{}]`, 400, "operation 0: must be one of KV"},
		{"", `[{"KV": {"Verb": "set", "Key": "a"}}, {"Node": {"Verb": "set", "Node": {"Node": "n"}}}]`, 400,
			"operation 1: must be one of KV"},
		{"", `[{"KV": {"Verb": "lock", "Key": "a"}}]`, 400, "operation 0: session: invalid name"},
		{"", `[{"KV": {"Verb": "lock", "Key": "a", "Session": "s"}}]`, 409,
			`{"Results":null,"Errors":[{"OpIndex":0,"What":"invalid session \"s\""`},
		{"", `[{"KV": {"Verb": "set", "Key": "a", "Namespace": "n"}}]`, 400, "operation 0: Namespace and Partition"},
		{"", `[{"KV": {"Verb": "swap", "Key": "a"}}]`, 400, `invalid verb "swap" of operation 0`},
		{"", `[{"KV": {"Verb": "set"}}]`, 400, "operation 0: invalid name"},
		{"?ns=x", `[]`, 400, "parameter ns"},
		{"?stale&consistent", `[]`, 400, "cannot specify"},
		{"", "[" + strings.Repeat(`{"KV": {"Verb": "delete", "Key": "a"}},`, maxTxn) +
			`{"KV": {"Verb": "delete", "Key": "a"}}]`, 413, "the transaction has 129 operations: must be at most 128"},
		{"", `[{"KV": {"Verb": "set", "Key": "a", "Value": "` + strings.Repeat("AAAA", kv.MaxValue/3+1) + `"}}]`, 413,
			"Request body(524289 bytes)"},
	} {
		w := r.do(t, "PUT", "/v1/txn"+test.target, test.body)
		if w.Code != test.status || !strings.HasPrefix(w.Body.String(), test.want) {
			t.Errorf("PUT /v1/txn%s %.200s = %d %.300s, want %d %s", test.target, test.body, w.Code, w.Body,
				test.status, test.want)
		}
		if ok := json.Valid(w.Body.Bytes()); ok != (w.Header().Get("Content-Type") == typeJSON) {
			t.Errorf("PUT /v1/txn %.200s = %s with headers %q, want the content type of the body", test.body, w.Body,
				w.Header())
		}
	}
}

// Any body is refused, or gets a response in Consul's format.
func FuzzTxn(f *testing.F) {
	for _, s := range []string{
		`[{"KV": {"Verb": "set", "Key": "a", "Value": "djE=", "Flags": 7}}, {"KV": {"Verb": "get-tree", "Key": ""}}]`,
		`[{"KV": {"Verb": "cas", "Key": "a", "Index": 2}}, {"KV": {"Verb": "delete-tree", "Key": "a"}}, {"KV": ` +
			`{"Verb": "check-index", "Key": "a", "Index": 2}}]`,
		`[{"KV": {"Verb": "delete-cas", "Key": "b"}}, {"KV": {"Verb": "get-or-empty", "Key": "a/b"}}, {"KV": ` +
			`{"Verb": "check-not-exists", "Key": "a"}}]`,
		`[{"KV": null}]`, `[{"Node": {}}]`, `null`, `[[]]`,
	} {
		f.Add([]byte(s))
	}
	r := newStoreHandler(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		w := r.do(t, "PUT", "/v1/txn", string(body))
		if !slices.Contains([]int{200, 400, 409, 413}, w.Code) {
			t.Fatalf("PUT /v1/txn %s = %d %s, want 200, 400, 409 or 413", body, w.Code, w.Body)
		}
		if w.Code != 200 && w.Code != 409 {
			return
		}
		var resp struct{ Results, Errors []json.RawMessage }
		err := json.Unmarshal(w.Body.Bytes(), &resp)
		if err != nil || (resp.Errors != nil) != (w.Code == 409) || (resp.Results != nil) != (w.Code == 200) {
			t.Fatalf("PUT /v1/txn %s = %d %s, %v, want Results for 200 and Errors for 409", body, w.Code, w.Body, err)
		}
	})
}
