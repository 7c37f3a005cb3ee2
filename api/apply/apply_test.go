// SPDX-License-Identifier: MPL-2.0

package apply

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/wanfed/wanfed/api"
)

// store is the HTTP API of a server with one type, catalog/v1/Node. Its stored
// data are the given data with a default for "port". One goroutine at a time
// uses it.
type store struct {
	resources map[string]api.Resource // by name
	failures  map[string]int          // status of requests, by method and name
	writes    int                     // successful
	before    func(name string)       // called before each write; nil: nothing
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := path.Base(r.URL.Path)
	if code := s.failures[r.Method+" "+name]; code != 0 {
		http.Error(w, "expected failure", code)
		return
	}
	var res api.Resource
	code := http.StatusOK
	if r.Method == http.MethodGet {
		var ok bool
		if res, ok = s.resources[name]; !ok {
			code = http.StatusNotFound
		}
	} else {
		res, code = s.put(r, name)
	}
	if code != http.StatusOK {
		http.Error(w, http.StatusText(code), code)
		return
	}
	_ = json.NewEncoder(w).Encode(res)
}

// put writes or checks a resource. A server replaces all metadata, and compares
// the version.
func (s *store) put(r *http.Request, name string) (api.Resource, int) {
	var res api.Resource
	data := map[string]any{"port": 80}
	if json.NewDecoder(r.Body).Decode(&res) != nil || json.Unmarshal(res.Data, &data) != nil {
		return res, http.StatusBadRequest
	}
	res.ID.Type.Kind = "Node"
	res.Data, _ = json.Marshal(data)
	if r.URL.Query().Has("dry-run") {
		return res, http.StatusOK
	}
	if s.before != nil {
		s.before(name)
	}
	if res.Version != "" && res.Version != s.resources[name].Version {
		return res, http.StatusConflict
	}
	s.writes++
	s.store(name, res)
	return s.resources[name], http.StatusOK
}

// store stores a resource under the next version.
func (s *store) store(name string, r api.Resource) {
	version, _ := strconv.Atoi(s.resources[name].Version)
	r.Version = strconv.Itoa(version + 1)
	s.resources[name] = r
}

func newStore(t *testing.T) (*store, *api.Client) {
	t.Helper()
	s := &store{resources: map[string]api.Resource{}, failures: map[string]int{}}
	srv := httptest.NewTLSServer(s)
	t.Cleanup(srv.Close)
	roots := srv.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c, err := api.NewClient(api.ClientConfig{Addr: srv.URL, TLS: &tls.Config{RootCAs: roots}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, c
}

// node returns a resource with these data. The kind is not in the spelling of
// the server.
func node(name, data string) api.Resource {
	id := api.ResourceID{Name: name, Type: api.ResourceTypeName{Group: "catalog", GroupVersion: "v1", Kind: "node"}}
	return api.Resource{ID: id, Data: json.RawMessage(data)}
}

// stored returns web as the store has it: version 1, with metadata and an
// owner.
func stored() api.Resource {
	r := node("web", `{ "host": "a", "port": 80 }`)
	r.ID.Type.Kind, r.ID.UID, r.Version = "Node", "u1", "1"
	r.Metadata = map[string]string{"team": "x"}
	r.Owner = &api.ResourceID{Name: "o", Type: r.ID.Type, UID: "u0"}
	return r
}

func TestCheck_Action(t *testing.T) {
	owner := func(name, uid string) *api.ResourceID {
		return &api.ResourceID{Name: name, Type: stored().ID.Type, UID: uid}
	}
	for _, tt := range []struct {
		name string
		edit func(*api.Resource)
		want Action
	}{
		{"not stored", func(r *api.Resource) { r.ID.Name = "db" }, Created},
		{"same data", func(*api.Resource) {}, Unchanged},
		{"default of the server", func(r *api.Resource) { r.Data = json.RawMessage(`{"host":"a","port":80}`) },
			Unchanged},
		{"other data", func(r *api.Resource) { r.Data = json.RawMessage(`{"host":"b"}`) }, Updated},
		{"same metadata", func(r *api.Resource) { r.Metadata = map[string]string{"team": "x"} }, Unchanged},
		{"other metadata", func(r *api.Resource) { r.Metadata = map[string]string{"team": "y"} }, Updated},
		{"empty metadata", func(r *api.Resource) { r.Metadata = map[string]string{} }, Updated},
		{"same uid", func(r *api.Resource) { r.ID.UID = "u1" }, Unchanged},
		{"other uid", func(r *api.Resource) { r.ID.UID = "u2" }, Updated},
		{"same version", func(r *api.Resource) { r.Version = "1" }, Unchanged},
		{"same owner", func(r *api.Resource) { r.Owner = owner("o", "") }, Unchanged},
		{"same owner and uid", func(r *api.Resource) { r.Owner = owner("o", "u0") }, Unchanged},
		{"other owner", func(r *api.Resource) { r.Owner = owner("p", "") }, Updated},
		{"other uid of the owner", func(r *api.Resource) { r.Owner = owner("o", "u9") }, Updated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := newStore(t)
			s.resources["web"] = stored()
			given := node("web", `{"host":"a"}`)
			tt.edit(&given)
			plan, err := Check(t.Context(), c, "", []api.Resource{given})
			if err != nil {
				t.Fatalf("Check() = %v, want nil", err)
			}
			if got := plan[0].Action; got != tt.want {
				t.Errorf("Action = %s, want %s", got, tt.want)
			}
			if got := plan[0].Result.ID.Type.Kind; got != "Node" {
				t.Errorf("kind of Result = %s, want the spelling of the server", got)
			}
			if s.writes != 0 {
				t.Errorf("writes of Check() = %d, want 0", s.writes)
			}
		})
	}
}

func TestCheck_StoredAsOtherVersionOfType(t *testing.T) {
	s, c := newStore(t)
	s.failures["GET web"] = http.StatusConflict
	plan, err := Check(t.Context(), c, "", []api.Resource{node("web", `{"host":"a"}`)})
	if err != nil || plan[0].Action != Updated {
		t.Errorf("Check() = %+v, %v, want %s", plan, err, Updated)
	}
}

// TestCheck_RefusedResources wants the errors of all refused resources, and a
// plan of the same length as the resources.
func TestCheck_RefusedResources(t *testing.T) {
	s, c := newStore(t)
	s.resources["web"] = stored()
	changed, absent := node("web", `{"host":"b"}`), node("db", `{}`)
	changed.Version, absent.Version = "7", "1"
	plan, err := Check(t.Context(), c, "", []api.Resource{changed, node("ok", `{}`), node("bad", `[]`), absent})
	if len(plan) != 4 {
		t.Errorf("items of the plan = %d, want 4", len(plan))
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("Check() = %v, want joined errors", err)
	}
	want := map[int]string{ // the error of each refused resource, by its index
		0: "catalog/v1/Node web was changed: its version is 1, not 7; read it and try again",
		2: "answered 400: Bad Request",
		3: "catalog/v1/Node db was changed: it does not exist, not 1; read it and try again",
	}
	for _, err := range joined.Unwrap() {
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || want[refused.Index] == "" || !strings.Contains(err.Error(), want[refused.Index]) {
			t.Errorf("error = %v, want one of %v", err, want)
			continue
		}
		delete(want, refused.Index)
	}
	if len(want) > 0 {
		t.Errorf("Check() = %v, lacks %v", err, want)
	}
}

// TestCheck_ServerFails wants no plan after an error that would repeat for each
// resource.
func TestCheck_ServerFails(t *testing.T) {
	for _, request := range []string{"PUT web", "GET web"} {
		t.Run(request, func(t *testing.T) {
			s, c := newStore(t)
			s.failures[request] = http.StatusInternalServerError
			plan, err := Check(t.Context(), c, "", []api.Resource{node("web", `{}`), node("db", `{}`)})
			if _, refused := errors.AsType[*RefusedError](err); plan != nil || err == nil || refused {
				t.Errorf("Check() = %v, %v, want no plan and an error of the server", plan, err)
			}
		})
	}
}

// check1 returns the plan of one resource.
func check1(t *testing.T, c *api.Client, r api.Resource) *Item {
	t.Helper()
	plan, err := Check(t.Context(), c, "", []api.Resource{r})
	if err != nil {
		t.Fatal(err)
	}
	return plan[0]
}

// TestCheck_Result checks the planned resource: the new data, and the parts
// that a write keeps.
func TestCheck_Result(t *testing.T) {
	s, c := newStore(t)
	s.resources["web"] = stored()
	got := check1(t, c, node("web", `{"host":"b"}`)).Result
	want := stored()
	want.Data = json.RawMessage(`{"host":"b","port":80}`)
	if !equalJSON(got.Data, want.Data) {
		t.Errorf("data of Result = %s, want %s", got.Data, want.Data)
	}
	got.Data = want.Data
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Result: (-want +got)\n%s", d)
	}
	r := node("web", `{"host":"b"}`)
	r.Metadata = map[string]string{"team": "y"}
	if got := check1(t, c, r).Result.Metadata; !maps.Equal(got, r.Metadata) {
		t.Errorf("metadata of Result = %v, want %v", got, r.Metadata)
	}
}

func TestWrite_Result(t *testing.T) {
	for _, tt := range []struct {
		action       Action
		name, data   string
		wantVersion  string
		wantMetadata map[string]string
		wantWrites   int
	}{
		{Created, "db", `{"host":"a"}`, "1", nil, 1},
		{Updated, "web", `{"host":"b"}`, "2", map[string]string{"team": "x"}, 1}, // metadata is kept
		{Unchanged, "web", `{"host":"a"}`, "1", map[string]string{"team": "x"}, 0},
	} {
		t.Run(string(tt.action), func(t *testing.T) {
			s, c := newStore(t)
			s.resources["web"] = stored()
			item := check1(t, c, node(tt.name, tt.data))
			if err := item.Write(t.Context()); err != nil {
				t.Fatalf("Write() = %v, want nil", err)
			}
			if item.Action != tt.action || s.writes != tt.wantWrites {
				t.Errorf("Write() = %s with %d writes, want %s with %d",
					item.Action, s.writes, tt.action, tt.wantWrites)
			}
			if got := item.Result.Version; got != tt.wantVersion {
				t.Errorf("version of Result = %s, want %s", got, tt.wantVersion)
			}
			if d := cmp.Diff(tt.wantMetadata, item.Result.Metadata); d != "" {
				t.Errorf("metadata of Result: (-want +got)\n%s", d)
			}
		})
	}
}

// TestWrite_Conflict changes the stored resource between the plan and the
// write.
func TestWrite_Conflict(t *testing.T) {
	change := func(s *store, edit func(*api.Resource)) {
		r := s.resources["web"]
		r.Metadata = maps.Clone(r.Metadata)
		edit(&r)
		s.store("web", r)
	}
	metadata := func(r *api.Resource) { r.Metadata["by"] = "other" }
	for _, tt := range []struct {
		name         string
		given        func(*api.Resource)
		conflicts    int
		edit         func(*api.Resource)
		want         Action
		wantMetadata map[string]string // nil: Write fails
		wantAttempts int
	}{
		{"metadata is kept", func(*api.Resource) {}, 1, metadata, Updated,
			map[string]string{"team": "x", "by": "other"}, 2},
		{"last attempt", func(*api.Resource) {}, maxAttempts - 1, metadata, Updated,
			map[string]string{"team": "x", "by": "other"}, maxAttempts},
		{"too many attempts", func(*api.Resource) {}, maxAttempts, metadata, Updated, nil, maxAttempts},
		{"same data written by another client", func(*api.Resource) {}, 1,
			func(r *api.Resource) { r.Data = json.RawMessage(`{"host":"b","port":80}`) }, Unchanged,
			map[string]string{"team": "x"}, 1},
		{"given version", func(r *api.Resource) { r.Version = "1" }, 1, metadata, Updated, nil, 1},
		{"given metadata", func(r *api.Resource) { r.Metadata = map[string]string{"team": "z"} }, 1, metadata, Updated,
			map[string]string{"team": "z"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := newStore(t)
			s.resources["web"] = stored()
			given := node("web", `{"host":"b"}`)
			tt.given(&given)
			item := check1(t, c, given)
			attempts := 0
			s.before = func(string) {
				if attempts++; attempts <= tt.conflicts {
					change(s, tt.edit)
				}
			}
			err := item.Write(t.Context())
			if attempts != tt.wantAttempts {
				t.Errorf("attempts = %d, want %d", attempts, tt.wantAttempts)
			}
			if tt.wantMetadata == nil {
				if !api.IsStatus(err, http.StatusConflict) {
					t.Errorf("Write() = %v, want status %d", err, http.StatusConflict)
				}
				return
			}
			if err != nil || item.Action != tt.want {
				t.Fatalf("Write() = %v with action %s, want nil and %s", err, item.Action, tt.want)
			}
			if d := cmp.Diff(tt.wantMetadata, s.resources["web"].Metadata); d != "" {
				t.Errorf("stored metadata: (-want +got)\n%s", d)
			}
			if got, want := item.Result.Version, s.resources["web"].Version; got != want {
				t.Errorf("version of Result = %s, want %s", got, want)
			}
		})
	}
}

func TestWrite_ServerFails(t *testing.T) {
	s, c := newStore(t)
	s.resources["web"] = stored()
	item := check1(t, c, node("web", `{"host":"b"}`))
	s.failures["PUT web"] = http.StatusServiceUnavailable
	if err := item.Write(t.Context()); !api.IsStatus(err, http.StatusServiceUnavailable) {
		t.Errorf("Write() = %v, want status %d", err, http.StatusServiceUnavailable)
	}
}
