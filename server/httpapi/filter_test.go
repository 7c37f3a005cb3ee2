// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/filter"
)

// registerWeb registers service web on the nodes n0 and n1.
func registerWeb(t *testing.T, r storeHandler) {
	t.Helper()
	for i, tags := range []string{`"v1","main"`, `"v1"`} {
		w := r.do(t, "PUT", "/v1/catalog/register",
			fmt.Sprintf(`{"Node": "n%d", "Address": "192.0.2.%d", "NodeMeta": {"rack": "r%[1]d"},
			"Service": {"Service": "web", "Port": 8%[1]d, "Tags": [%[3]s], "Meta": {"version": "%[1]d"}, "TaggedAddresses": {"a%[1]d": {"Address": "192.0.2.9", "Port": 9}}},
			"Checks": [{"Name": "up", "Status": "passing", "ServiceID": "web"}, {"Name": "load", "Status": "warning"}]}`, i, i, tags))
		if w.Code != 200 {
			t.Fatalf("register = %d %s, want 200", w.Code, w.Body)
		}
	}
}

func TestFilter_Matches(t *testing.T) {
	r := newStoreHandler(t)
	registerWeb(t, r)
	// want is part of the body, or "n N" for a list of N objects
	for _, test := range []struct{ path, filter, want string }{
		{"/v1/health/service/web", `Service.Port == 81`, `"Node":"n1"`},
		{"/v1/health/service/web", `Service.Port == 81`, "n 1"},
		{"/v1/health/service/web", `"main" in Service.Tags and Node.Meta.rack == "r0"`, "n 1"},
		{"/v1/health/service/web", `Service.Tags contains "main" or Service.Meta.version != "0"`, "n 2"},
		{"/v1/health/service/web", `not ("v1" in Service.Tags)`, "n 0"},
		{"/v1/health/service/web", `Service.Tags is empty`, "[]"},
		{"/v1/health/service/web", `Node.Address matches "^192[.]0[.]2[.]1$"`, "n 1"},
		{"/v1/health/service/web", `any Checks as c { c.Name == "load" and c.Status == "warning" }`, "n 2"},
		{"/v1/health/service/web", `Checks.Status == warning and Service.Port == 81`, "n 1"},
		{"/v1/health/service/web", `Checks.Status == critical`, "n 0"},
		{"/v1/health/service/web", `Node.Meta.nothing == "x"`, "n 0"},
		{"/v1/health/service/web", `Service.TaggedAddresses.a1.Port == 9`, `"Node":"n1"`},
		{"/v1/health/service/web", `Service.TaggedAddresses.a1.Port == 9`, "n 1"},
		{"/v1/health/service/web", `Service.TaggedAddresses.a1.Address == "192.0.2.9" or Service.Port == 80`, "n 2"},
		{"/v1/health/service/web", `any Service.TaggedAddresses as tag, a { tag == "a0" and a.Port == 9 }`, "n 1"},
		{"/v1/health/service/web", `not "a1" in Service.TaggedAddresses`, "n 1"},
		{"/v1/catalog/service/web", `ServiceTaggedAddresses.lan.Address != "192.0.2.9"`, "n 2"},
		{"/v1/catalog/service/web", `ServicePort == 80 and "main" in ServiceTags and NodeMeta.rack == "r0"`, "n 1"},
		{"/v1/catalog/services", `"main" in ServiceTags`, `{"web":["main","v1"]}`},
		{"/v1/catalog/services", `Node == "n1"`, `{"web":["v1"]}`},
		{"/v1/catalog/services", `ServiceName != "web"`, `{}`},
		{"/v1/catalog/nodes", `Meta.rack == "r1"`, `"Node":"n1"`},
		{"/v1/catalog/nodes", `Meta.rack == "r1"`, "n 1"},
		{"/v1/catalog/node/n0", `Port == 1`, `"Services":{}`},
		{"/v1/catalog/node-services/n0", `Service == "web"`, `"Service":"web"`},
		{"/v1/catalog/node-services/n0", `Service == "x"`, `"Services":[]`},
		{"/v1/catalog/node-services/none", `Service == "x"`, `{"Node":null,"Services":[]}`},
		{"/v1/health/node/n0", `Status == "warning"`, "n 1"},
		{"/v1/health/checks/web", `"main" in ServiceTags`, "n 1"},
		{"/v1/health/state/any", `ServiceName == "web"`, "n 2"},
		{"/v1/agent/services", `Port == 1`, "{}"},
		{"/v1/agent/checks", `Status == "passing"`, "{}"},
		{"/v1/agent/members", `Name == "none"`, "[]"},
	} {
		w := r.do(t, "GET", test.path+"?filter="+url.QueryEscape(test.filter), "")
		body := w.Body.String()
		ok := strings.Contains(body, test.want)
		if n, counts := strings.CutPrefix(test.want, "n "); counts {
			var list []any
			ok = json.Unmarshal(w.Body.Bytes(), &list) == nil && fmt.Sprint(len(list)) == n
		}
		if w.Code != 200 || !ok {
			t.Errorf("%s with filter %s = %d %s, want %s", test.path, test.filter, w.Code, body, test.want)
		}
	}
}

func TestFilter_Refused(t *testing.T) {
	r := newStoreHandler(t)
	registerWeb(t, r)
	for _, test := range []struct{ path, filter, want string }{
		{"/v1/health/service/none", `Service.Nothing == 1`, `bad filter "Service.Nothing == 1": `},
		{"/v1/health/service/web", `Service.Port == x`, "bad filter"},
		{"/v1/health/service/web", `Service.Port =`, "bad filter"},
		{"/v1/health/service/web", `Service.TaggedAddresses.a0.Nothing == 1`, "bad filter"},
		{"/v1/health/service/web", `Node.Node matches "("`, "bad filter"},
		{"/v1/health/service/web", `any Checks as c { c.Nothing == 1 }`, "bad filter"}, // found only with a check
		{"/v1/catalog/nodes", strings.Repeat("x", filter.MaxLen+1), "the filter has 8193 bytes: must be at most 8192"},
		{"/v1/internal/federation-states", `Datacenter == dc1`, "parameter filter is not supported"},
	} {
		if w := r.do(t, "GET", test.path+"?filter="+url.QueryEscape(test.filter), ""); w.Code != 400 ||
			!strings.HasPrefix(w.Body.String(), test.want) {
			t.Errorf("%s with filter %.40s = %d %s, want 400 %s", test.path, test.filter, w.Code, w.Body, test.want)
		}
	}
}

// Any expression is refused or evaluated within 10 s.
func FuzzExpression(f *testing.F) {
	for _, s := range []string{
		`Service.Port == 81 and ("a" in Service.Tags or not Node.Meta.x matches "a+")`,
		`any Checks as c { c.Status == "x" }`,
		`all Node.Meta as k, v { k == v }`, strings.Repeat("(", 40), strings.Repeat("not ", 2000) + "Node.Node == 1",
		"Checks.0.Name is empty",
		`Service.Proxy.MeshGateway is not empty`, `Checks[0] == 1`, `"/Node/Node" == a`,
		`Service.TaggedAddresses.x.Port == 1 or any Service.TaggedAddresses as k, v { v.Address == "a" }`,
		`ServiceLocality.x == 1 and TaggedAddresses.a.b == 1`,
	} {
		f.Add(s)
	}
	entry := api.ServiceEntry{
		Node: api.Node{Node: "n", Meta: map[string]string{"k": "v"}},
		Service: api.Service{Service: "web", Tags: []string{"a"},
			TaggedAddresses: map[string]api.ServiceAddress{"lan": {Port: 1}}},
		Checks: []api.Check{{Name: "up", Status: "passing", Definition: api.Definition(`{"a":1}`)}},
	}
	f.Fuzz(func(t *testing.T, text string) {
		q := query{values: url.Values{"filter": {text}}}
		start := time.Now()
		expr, err := expressionOf[api.ServiceEntry](q)
		if err == nil && expr != nil {
			_, err = matching(expr, slices.Repeat([]api.ServiceEntry{entry}, 2))
		}
		if _, err := expressionOf[api.CatalogService](q); err != nil && !errors.As(err, new(badRequest)) {
			t.Errorf("expressionOf(%q) = %v, want nil or a badRequest", text, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("expression %q took %v: %v, want at most 10 s", text, took, err)
		}
		if _, ok := err.(badRequest); err != nil && !ok {
			t.Errorf("matching(%q) = %v, want nil or a badRequest", text, err)
		}
	})
}
