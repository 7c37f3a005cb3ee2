// SPDX-License-Identifier: MPL-2.0

package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/wanfed/wanfed/api"
)

// List the gateways of all datacenters. The test server replaces a wanfed
// server.
func ExampleClient() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(api.HeaderIndex, "7")
		fmt.Fprint(w, `[{"Datacenter": "dc1", "MeshGateways": []}, {"Datacenter": "dc2", "MeshGateways": []}]`)
	}))
	defer server.Close()

	c, err := api.NewClient(api.ClientConfig{Addr: server.URL})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	states, meta, err := c.FederationStates(context.Background(), api.QueryOptions{})
	if err != nil {
		panic(err)
	}
	for _, s := range states {
		fmt.Println(s.Datacenter, len(s.MeshGateways))
	}
	fmt.Println("index", meta.Index)
	// Output:
	// dc1 0
	// dc2 0
	// index 7
}

func ExampleParseResourceType() {
	t, err := api.ParseResourceType("catalog/v1/Node")
	fmt.Println(t.Group, t.GroupVersion, t.Kind, err)
	// Output: catalog v1 Node <nil>
}
