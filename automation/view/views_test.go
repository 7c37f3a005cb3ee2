// SPDX-License-Identifier: MPL-2.0

package view

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// settle waits until all events have been rendered.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// value returns the value of a complete view.
func value(t *testing.T, w *View) Value {
	t.Helper()
	v, ok := w.Value()
	if !ok {
		t.Fatal("Value() = false, want a value")
	}
	return v
}

// The expected values are those of Consul-Terraform-Sync 0.9.0 for the same
// catalog.
func TestValue_Sample(t *testing.T) {
	text, err := os.ReadFile("testdata/values.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name        string
		Query, Want json.RawMessage
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("testdata/values.json has no cases")
	}
	testutil.Bubble(t, func(t *testing.T) {
		m := newMemory()
		sampleCatalog(m)
		v := start(t, m)
		views := make([]*View, len(cases))
		for i, c := range cases {
			views[i] = open(t, v, string(c.Query))
			if _, ok := views[i].Value(); ok {
				t.Errorf("%s: Value() = true before the snapshot, want false", c.Name)
			}
		}
		settle()
		for i, c := range cases {
			got := value(t, views[i])
			var have, want any
			if json.Unmarshal(got.JSON, &have) != nil || json.Unmarshal(c.Want, &want) != nil || !reflect.DeepEqual(have, want) {
				t.Errorf("%s: value = %s, want %s", c.Name, got.JSON, c.Want)
			}
			if canonical, err := json.Marshal(have); err != nil || !bytes.Equal(canonical, got.JSON) {
				t.Errorf("%s: JSON = %s, want canonical JSON: %s", c.Name, got.JSON, canonical)
			}
			if len(got.Keys) != len(have.(map[string]any)) {
				t.Errorf("%s: Keys = %v, want the keys of %s", c.Name, got.Keys, got.JSON)
			}
		}
	})
}
