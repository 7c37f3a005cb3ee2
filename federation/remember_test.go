// SPDX-License-Identifier: MPL-2.0

package federation

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestRemembered(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := remembered{}
	if !r.note(map[string][]string{"dc1": {"198.51.100.1:8443"}}, now) {
		t.Error("a new address is not worth writing")
	}
	if r.note(map[string][]string{"dc1": {"198.51.100.1:8443"}}, now.Add(time.Hour)) {
		t.Error("the same address is worth writing an hour later")
	}
	for i := range 20 {
		now = now.Add(time.Minute)
		r.note(map[string][]string{"dc1": {fmt.Sprintf("198.51.100.%d:8443", i+2)}}, now)
	}
	if got := r.of("dc1"); len(got) != maxRemembered || got[0] != "198.51.100.21:8443" {
		t.Errorf("remembers %v", got)
	}

	path := filepath.Join(t.TempDir(), "addresses.json")
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	back, err := loadRemembered(path)
	if err != nil || !slices.Equal(back.of("dc1"), r.of("dc1")) {
		t.Errorf("read back %v, %v", back.of("dc1"), err)
	}
	r.note(map[string][]string{"dc1": nil}, now.Add(rememberFor))
	if got := r.of("dc1"); len(got) != 0 {
		t.Errorf("still remembers %v", got)
	}
}

func TestLoadRememberedOfWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	if r, err := loadRemembered(filepath.Join(dir, "absent")); err != nil || len(r) != 0 {
		t.Errorf("of no file: %v, %v", r, err)
	}
	for i, content := range []string{"", "{", `{"dc1": 1}`, "[]"} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := loadRemembered(path); err == nil || r == nil {
			t.Errorf("of %q: %v, %v", content, r, err)
		}
	}
	path := filepath.Join(dir, "odd")
	if err := os.WriteFile(path, []byte(`{"dc1": {"nonsense": "2026-01-01T00:00:00Z", "198.51.100.1:8443": "2026-01-01T00:00:00Z"}, "dc2": null}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := loadRemembered(path)
	if err != nil || !slices.Equal(r.of("dc1"), []string{"198.51.100.1:8443"}) {
		t.Errorf("of odd entries: %v, %v", r, err)
	}
	r.note(map[string][]string{"dc2": {"198.51.100.2:8443"}}, time.Now()) // null must not panic
}
