// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestSessionCreate_LockDelayUnits(t *testing.T) {
	r := newStoreHandler(t)
	for body, want := range map[string]string{
		``:                       `"LockDelay":15000000000`,
		`{"LockDelay": "5s"}`:    `"LockDelay":5000000000`,
		`{"LockDelay": 5}`:       `"LockDelay":5000000000`,
		`{"LockDelay": 5000000}`: `"LockDelay":5000000`,
		`{"LockDelay": 0}`:       `"LockDelay":0`,
	} {
		w := r.do(t, "PUT", "/v1/session/create", body)
		var created struct{ ID string }
		if err := json.Unmarshal(w.Body.Bytes(), &created); err != nil || w.Code != 200 {
			t.Fatalf("PUT /v1/session/create %s = %d %s, want 200 with an ID", body, w.Code, w.Body)
		}
		info := r.do(t, "GET", "/v1/session/info/"+created.ID, "")
		if !strings.Contains(info.Body.String(), want+",") {
			t.Errorf("session of %s = %s, want %s", body, info.Body, want)
		}
	}
}

// Any body is refused, or creates a session that can be read and destroyed.
func FuzzSessionCreate(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `[]`, `{"TTL": "15s", "LockDelay": "1s", "Behavior": "delete", "Name": "n"}`,
		`{"LockDelay": 1e3}`, `{"LockDelay": -9223372036854775808}`, `{"NodeChecks": [], "ServiceChecks": [{"ID": "c"}]}`,
		`{"Node": "n", "Checks": ["serfHealth"]}`,
	} {
		f.Add([]byte(s))
	}
	r := newStoreHandler(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		w := r.do(t, "PUT", "/v1/session/create", string(body))
		if w.Code != 200 {
			if w.Code != 400 {
				t.Errorf("PUT /v1/session/create %q = %d %s, want 200 or 400", body, w.Code, w.Body)
			}
			return
		}
		var created struct{ ID string }
		if err := json.Unmarshal(w.Body.Bytes(), &created); err != nil {
			t.Fatal(err)
		}
		if info := r.do(t, "GET", "/v1/session/info/"+created.ID, ""); !strings.Contains(info.Body.String(), created.ID) {
			t.Errorf("session of %q = %s, want its ID %s", body, info.Body, created.ID)
		}
		if d := r.do(t, "PUT", "/v1/session/destroy/"+created.ID, ""); d.Body.String() != "true" {
			t.Errorf("PUT /v1/session/destroy = %d %s, want true", d.Code, d.Body)
		}
	})
}
