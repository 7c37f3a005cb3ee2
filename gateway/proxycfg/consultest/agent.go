// SPDX-License-Identifier: MPL-2.0

package consultest

import (
	"embed"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed testdata
var recorded embed.FS

// Recorded returns the first JSON value of a recorded file, and its headers.
func Recorded(t testing.TB, name string) (body []byte, header http.Header) {
	t.Helper()
	b, err := recorded.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(b), "\n\n")
	header = http.Header{}
	for line := range strings.Lines(head) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && strings.HasPrefix(key, "X-") {
			header.Set(key, value)
		}
	}
	if i := strings.IndexAny(string(b), "{["); i >= 0 {
		var raw json.RawMessage
		if err := json.NewDecoder(strings.NewReader(string(b[i:]))).Decode(&raw); err != nil {
			t.Fatalf("decode %s: %v", name, err)
		}
		return raw, header
	}
	return []byte(rest), header
}

// Object is a JSON object.
type Object = map[string]any

// Agent is a fake agent of a server of one datacenter. Its methods may be
// called from any goroutine.
type Agent struct {
	DC string

	t        testing.TB
	addr     string
	server   *httptest.Server // nil: stopped
	requests chan string
	byDC     Object // the recorded response of mesh-gateways
	gwHead   http.Header
	service  Object // the recorded response of agent/service

	mu       sync.Mutex
	index    uint64
	restored int                                           // number of calls of SetIndex and Stop
	changed  chan struct{}                                 // closed at the next change
	servers  map[string]string                             // address by node
	gateways map[string][]Gateway                          // of other datacenters
	services map[string]*registered                        // by id
	token    string                                        // required; empty: none
	catalog                                                // other services, and keys
	fault    func(http.ResponseWriter, *http.Request) bool // true: it has responded
}

// Gateway is a mesh gateway of another datacenter.
type Gateway struct {
	Node, WAN string // WAN is host:port, or only a host
	Critical  bool
	Meta      string // of consul-wan-federation; "-": none; default "1"
}

type registered struct {
	body    Object
	ttl     time.Duration
	expires time.Time
}

// NewAgent starts an agent of datacenter dc. It has no server and no gateway.
func NewAgent(t testing.TB, dc string) *Agent {
	t.Helper()
	a := &Agent{
		DC: dc, t: t, requests: make(chan string, 100000), index: 20, changed: make(chan struct{}),
		servers: map[string]string{}, gateways: map[string][]Gateway{}, services: map[string]*registered{},
	}
	body, head := Recorded(t, "mesh_gateways.txt")
	a.gwHead = head
	a.decode(body, &a.byDC)
	body, _ = Recorded(t, "agent_service.txt")
	a.decode(body, &a.service)
	body, _ = Recorded(t, "catalog_nodes.txt")
	a.decode(body, &a.nodes)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.addr = ln.Addr().String()
	a.serve(ln)
	t.Cleanup(a.Stop)
	return a
}

func (a *Agent) decode(b []byte, v any) {
	a.t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		a.t.Fatalf("decode a recorded response: %v", err)
	}
}

func (a *Agent) serve(ln net.Listener) {
	server := &httptest.Server{Listener: ln, Config: &http.Server{Handler: a}}
	server.Start()
	a.mu.Lock()
	a.server = server
	a.mu.Unlock()
}

// URL returns the URL of the agent.
func (a *Agent) URL() string { return "http://" + a.addr }

// Stop closes the listener and all connections.
func (a *Agent) Stop() {
	a.mu.Lock()
	server := a.server
	a.server = nil
	a.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		a.change(func() { a.restored++ }) // ends pending queries
		server.Close()
	}
}

// Start starts the agent again, at the same address. keep reports whether it
// still has its registrations. The index begins again at a low value.
func (a *Agent) Start(keep bool) {
	a.t.Helper()
	ln, err := net.Listen("tcp", a.addr)
	if err != nil {
		a.t.Fatal(err)
	}
	a.mu.Lock()
	a.index, a.namesIndex = 3, 3
	if !keep {
		a.services = map[string]*registered{}
	}
	a.mu.Unlock()
	a.serve(ln)
}

// change changes the state and ends pending queries.
func (a *Agent) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.index++
	close(a.changed)
	a.changed = make(chan struct{})
}

// Set replaces the servers of the datacenter (address by node) and the gateways
// of other datacenters.
func (a *Agent) Set(servers map[string]string, gateways map[string][]Gateway) {
	a.change(func() { a.servers, a.gateways = maps.Clone(servers), maps.Clone(gateways) })
}

// SetToken makes the agent require a token.
func (a *Agent) SetToken(token string) { a.change(func() { a.token = token }) }

// SetFault makes f respond to requests for which it returns true. nil ends the
// fault.
func (a *Agent) SetFault(f func(http.ResponseWriter, *http.Request) bool) {
	a.change(func() { a.fault = f })
}

// SetIndex replaces the index without another change, and ends pending queries,
// as a restored snapshot does.
func (a *Agent) SetIndex(index uint64) {
	a.change(func() { a.index, a.namesIndex, a.restored = index-1, index, a.restored+1 })
}

// RestartUnnoticed makes the index begin again at a low value. Pending queries
// continue to block, as queries do that reach a restarted agent with the index of
// the previous one.
func (a *Agent) RestartUnnoticed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index, a.namesIndex = 3, 3
}

// Register registers a service as another program would, without a check.
func (a *Agent) Register(body Object) {
	a.change(func() { a.services[body["ID"].(string)] = &registered{body: body} })
}

// Deregister removes a service as another program would.
func (a *Agent) Deregister(id string) { a.change(func() { delete(a.services, id) }) }

// Registration returns the body of the last registration of a service, and the
// status of its check now. It returns nil if the service is not registered.
func (a *Agent) Registration(id string) (body Object, status string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.services[id]
	if s == nil {
		return nil, ""
	}
	return s.body, s.status()
}

func (s *registered) status() string {
	if s.ttl > 0 && time.Now().After(s.expires) {
		return "critical"
	}
	return "passing"
}

// Requests returns the requests: method, path and query. When a query of the
// catalog begins to block, there is another line with the method "blocked".
func (a *Agent) Requests() <-chan string { return a.requests }

// ServeHTTP implements http.Handler.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.requests <- r.Method + " " + r.URL.Path + "?" + r.URL.RawQuery
	a.mu.Lock()
	fault, token := a.fault, a.token
	a.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	if got := r.Header.Get("X-Consul-Token"); token != "" && got != token {
		text := "Permission denied: anonymous token lacks permission 'service:write' on \"mesh-gateway\""
		if got != "" {
			text = "ACL not found"
		}
		http.Error(w, text, http.StatusForbidden)
		return
	}
	id := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch path := r.URL.Path; {
	case r.Method == http.MethodGet && path == "/v1/internal/federation-states/mesh-gateways":
		a.block(w, r, func() any { return a.meshGateways() })
	case r.Method == http.MethodGet && path == "/v1/health/service/consul":
		a.block(w, r, func() any { return a.healthOfServers() })
	case r.Method == http.MethodGet && a.serveCatalog(w, r):
	case r.Method == http.MethodGet && strings.HasPrefix(path, "/v1/agent/service/"):
		a.serveService(w, r, id)
	case r.Method == http.MethodPut && path == "/v1/agent/service/register":
		a.serveRegister(w, r)
	case r.Method == http.MethodPut && strings.HasPrefix(path, "/v1/agent/service/deregister/"):
		if body, _ := a.Registration(id); body == nil {
			http.Error(w, fmt.Sprintf("Unknown service ID %q. Ensure that the service ID is passed, not the service name.",
				id), http.StatusNotFound)
			return
		}
		a.Deregister(id)
	case r.Method == http.MethodPut && strings.HasPrefix(path, "/v1/agent/check/pass/service:"):
		a.servePass(w, strings.TrimPrefix(id, "service:"))
	default:
		a.t.Errorf("request = %s %s, want one that the agent has", r.Method, r.URL)
		http.Error(w, "no such endpoint", http.StatusNotFound)
	}
}

// Error500 responds as the recorded agent did with the status 500. text
// replaces the body. Empty: the recorded body.
func (a *Agent) Error500(w http.ResponseWriter, text string) {
	body, head := Recorded(a.t, "error_500.txt")
	maps.Copy(w.Header(), head)
	if text == "" {
		text = strings.TrimSpace(string(body))
	}
	w.WriteHeader(http.StatusInternalServerError)
	fmt.Fprintln(w, text)
}

// block serves a blocking query.
func (a *Agent) block(w http.ResponseWriter, r *http.Request, read func() any) {
	a.blockOn(w, r, &a.index, read)
}

// blockOn serves a query that blocks until the index current changes.
func (a *Agent) blockOn(w http.ResponseWriter, r *http.Request, current *uint64, read func() any) {
	index, _ := strconv.ParseUint(r.URL.Query().Get("index"), 10, 64)
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = 5 * time.Minute
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	a.mu.Lock()
	restored := a.restored
	for ended := false; index > 0 && *current <= index && restored == a.restored && !ended; {
		changed := a.changed
		a.requests <- "blocked " + r.URL.Path + "?" + r.URL.RawQuery
		a.mu.Unlock()
		select {
		case <-changed:
		case <-timeout.C:
			ended = true
		case <-r.Context().Done():
			ended = true
		}
		a.mu.Lock()
	}
	body, now, filtered := read(), *current, a.filtered
	a.mu.Unlock()
	maps.Copy(w.Header(), a.gwHead)
	w.Header().Set("X-Consul-Index", strconv.FormatUint(now, 10))
	if filtered {
		w.Header().Set("X-Consul-Results-Filtered-By-Acls", "true")
	}
	if body == nil { // an absent key
		w.WriteHeader(http.StatusNotFound)
		return
	}
	a.write(w, body)
}

func (a *Agent) write(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		a.t.Logf("write a response: %v", err)
	}
}

// entry returns a copy of the recorded gateway of a datacenter with other names.
func (a *Agent) entry(dc, node, id, status string) (entry, service Object) {
	b, err := json.Marshal(a.byDC["dc2"].([]any)[0])
	if err != nil {
		a.t.Fatal(err)
	}
	a.decode(b, &entry)
	n, service := entry["Node"].(Object), entry["Service"].(Object)
	n["Node"], n["Datacenter"], service["ID"] = node, dc, id
	for _, c := range entry["Checks"].([]any) {
		check := c.(Object)
		check["Node"] = node
		if check["ServiceID"] != "" {
			check["ServiceID"], check["CheckID"], check["Status"] = id, "service:"+id, status
		}
	}
	return entry, service
}

// meshGateways returns the gateways of all datacenters. The caller holds mu.
func (a *Agent) meshGateways() Object {
	out := Object{}
	for dc, gateways := range a.gateways {
		var list []Object
		for _, g := range gateways {
			status := "passing"
			if g.Critical {
				status = "critical"
			}
			e, service := a.entry(dc, g.Node, g.Node, status)
			host, port, err := net.SplitHostPort(g.WAN)
			if err != nil {
				host = g.WAN
			}
			n, _ := strconv.Atoi(port)
			service["TaggedAddresses"].(Object)["wan"] = Object{"Address": host, "Port": n}
			switch g.Meta {
			case "":
			case "-":
				service["Meta"] = Object{}
			default:
				service["Meta"] = Object{"consul-wan-federation": g.Meta}
			}
			list = append(list, e)
		}
		out[dc] = list
	}
	for _, id := range slices.Sorted(maps.Keys(a.services)) {
		s := a.services[id]
		e, service := a.entry(a.DC, "srv1", id, s.status())
		for _, key := range []string{"Address", "Port", "TaggedAddresses", "Meta", "Kind"} {
			service[key] = s.body[key]
		}
		list, _ := out[a.DC].([]Object)
		out[a.DC] = append(list, e)
	}
	return out
}

// healthOfServers returns the servers. The caller holds mu.
func (a *Agent) healthOfServers() []Object {
	out := []Object{}
	for _, node := range slices.Sorted(maps.Keys(a.servers)) {
		host, port, err := net.SplitHostPort(a.servers[node])
		if err != nil {
			a.t.Errorf("address of server %s: %v", node, err)
		}
		n, _ := strconv.Atoi(port)
		e, service := a.entry(a.DC, node, "consul", "passing")
		named := e["Node"].(Object)
		named["Address"], named["TaggedAddresses"] = host, Object{"lan": host, "wan": host}
		service["Kind"], service["Service"], service["Address"], service["Port"] = "", "consul", "", n
		service["TaggedAddresses"], service["Meta"] = nil, Object{"version": "1.21.0"}
		e["Checks"] = e["Checks"].([]any)[:1] // serfHealth
		out = append(out, e)
	}
	return out
}

// serveService serves a query that blocks by hash.
func (a *Agent) serveService(w http.ResponseWriter, r *http.Request, id string) {
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		wait = 5 * time.Minute
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for expired := false; ; {
		a.mu.Lock()
		s, changed, stopped := a.services[id], a.changed, a.server == nil
		a.mu.Unlock()
		if s == nil {
			http.Error(w, "unknown service ID: "+id, http.StatusNotFound)
			return
		}
		out := maps.Clone(a.service)
		for _, key := range []string{"Kind", "ID", "Address", "Port", "TaggedAddresses", "Meta"} {
			out[key] = s.body[key]
		}
		out["Service"], out["Datacenter"] = s.body["Name"], a.DC
		b, err := json.Marshal(out)
		if err != nil {
			a.t.Error(err)
		}
		sum := fnv.New64()
		sum.Write(b)
		hash := fmt.Sprintf("%016x", sum.Sum64())
		out["ContentHash"] = hash
		if expired || stopped || r.URL.Query().Get("hash") != hash {
			w.Header().Set("X-Consul-Contenthash", hash)
			a.write(w, out)
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			expired = true
		case <-r.Context().Done():
			return
		}
	}
}

func (a *Agent) serveRegister(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	var body Object
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	id, _ := body["ID"].(string)
	check, _ := body["Check"].(Object)
	ttlText, _ := check["TTL"].(string)
	ttl, ttlErr := time.ParseDuration(ttlText)
	if err != nil || id == "" || ttlErr != nil {
		http.Error(w, "Request decode failed", http.StatusBadRequest)
		return
	}
	a.change(func() { a.services[id] = &registered{body: body, ttl: ttl, expires: time.Now().Add(ttl)} })
}

func (a *Agent) servePass(w http.ResponseWriter, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.services[id]
	if s == nil {
		http.Error(w, fmt.Sprintf("Unknown check ID %q. Ensure that the check ID is passed, not the check name.",
			"service:"+id), http.StatusNotFound)
		return
	}
	s.expires = time.Now().Add(s.ttl)
}
