// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
)

// registration is the body of /v1/catalog/register. As in Consul, unknown
// fields are ignored.
type registration struct {
	ID, Node, Address, Datacenter string
	TaggedAddresses, NodeMeta     map[string]string
	Service                       *serviceBody
	Check                         *checkBody
	Checks                        []checkBody
	SkipNodeUpdate                bool
}

// serviceBody is a service in the body of a request. The endpoints of the
// catalog have its name in Service, and the endpoints of the agent in Name.
type serviceBody struct {
	Kind, ID, Service, Name string
	Tags                    []string
	Meta                    map[string]string
	Port                    int
	Address, SocketPath     string
	TaggedAddresses         map[string]api.ServiceAddress
	Weights                 *api.Weights
	EnableTagOverride       bool
	Proxy, Connect, Ports   json.RawMessage
	Check                   *agentCheckBody
	Checks                  []agentCheckBody
}

// checkBody is a check in the body of /v1/catalog/register.
type checkBody struct {
	Node, CheckID, Name, Status, Notes, Output      string
	ServiceID, ServiceName, Type, Interval, Timeout string
	Definition                                      json.RawMessage
}

func (h *handler) catalogRegister(r *http.Request, q query) (response, error) {
	var body registration
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	if body.Datacenter != "" && body.Datacenter != h.DC {
		return response{}, otherDatacenter(body.Datacenter)
	}
	reg, err := body.convert()
	if err != nil {
		return response{}, badRequest{err}
	}
	err = untilLeader(r.Context(), func(ctx context.Context) error { return h.writer.Register(ctx, reg) })
	return response{body: true}, registerError(err)
}

// registerError returns err as a badRequest if the node or the service of a
// registration does not exist.
func registerError(err error) error {
	if errors.Is(err, catalog.ErrNoNode) || errors.Is(err, catalog.ErrNoService) {
		return badRequest{err}
	}
	return err
}

// convert returns the registration for package catalog. Its errors name the
// invalid field.
func (b registration) convert() (reg catalog.Registration, err error) {
	reg.Node = &pb.Node{Id: b.ID, Node: b.Node, Address: b.Address, TaggedAddresses: b.TaggedAddresses,
		Meta: b.NodeMeta}
	switch {
	case b.Node == "":
		return reg, errors.New("must provide node")
	case b.SkipNodeUpdate:
		reg.Node = &pb.Node{Node: b.Node}
	case b.Address == "":
		return reg, errors.New("must provide address if SkipNodeUpdate is not set")
	}
	if b.Service != nil {
		if reg.Service, err = b.Service.toProto(b.Node); err != nil {
			return reg, err
		}
	}
	if b.Check != nil {
		b.Checks = append(b.Checks, *b.Check)
	}
	for _, c := range b.Checks {
		if c.Node != "" && c.Node != b.Node {
			return reg, fmt.Errorf("check %q is of node %q: must be of node %q, which is registered",
				cmp.Or(c.CheckID, c.Name), c.Node, b.Node)
		}
		check, err := c.toProto(b.Node)
		if err != nil {
			return reg, err
		}
		reg.Checks = append(reg.Checks, check)
	}
	return reg, nil
}

func (b *serviceBody) toProto(node string) (*pb.Service, error) {
	name := cmp.Or(b.Service, b.Name)
	s := &pb.Service{
		Node: node, Id: cmp.Or(b.ID, name), Service: name, Tags: b.Tags, Address: b.Address, Meta: b.Meta,
		EnableTagOverride: b.EnableTagOverride,
	}
	switch {
	case name == "":
		return nil, errors.New("must provide the name of the service")
	case b.Kind != "":
		return nil, fmt.Errorf("service %q is of kind %q: must be empty; gateways register themselves", name, b.Kind)
	case !isEmpty(b.Proxy), !isEmpty(b.Connect):
		return nil, fmt.Errorf("service %q has Proxy or Connect: wanfed has no service mesh; leave them out", name)
	case b.SocketPath != "", !isEmpty(b.Ports):
		return nil, fmt.Errorf("service %q has SocketPath or Ports: only Address and Port are supported", name)
	case b.Port < 0 || b.Port > 65535:
		return nil, fmt.Errorf("port of service %q is %d: must be 0 to 65535", name, b.Port)
	}
	s.Port = uint32(b.Port)
	for tag, a := range b.TaggedAddresses {
		if a.Port < 0 || a.Port > 65535 {
			return nil, fmt.Errorf("tagged address %q of service %q has port %d: must be 1 to 65535", tag, name, a.Port)
		}
		if s.TaggedAddresses == nil {
			s.TaggedAddresses = map[string]*pb.Address{}
		}
		s.TaggedAddresses[tag] = &pb.Address{Address: a.Address, Port: uint32(a.Port)}
	}
	if w := b.Weights; w != nil {
		if w.Passing < 0 || w.Warning < 0 || w.Passing > 65535 || w.Warning > 65535 {
			return nil, fmt.Errorf("weights of service %q are %d and %d: must be 0 to 65535", name,
				w.Passing, w.Warning)
		}
		s.WeightPassing, s.WeightWarning = uint32(w.Passing), uint32(w.Warning)
	}
	return s, nil
}

func (b checkBody) toProto(node string) (*pb.Check, error) {
	c := &pb.Check{
		Node: node, CheckId: cmp.Or(b.CheckID, b.Name), Name: cmp.Or(b.Name, b.CheckID),
		Status: cmp.Or(b.Status, catalog.StatusCritical), Notes: b.Notes, Output: b.Output, ServiceId: b.ServiceID,
		Type: b.Type, Interval: b.Interval, Timeout: b.Timeout,
	}
	if c.Type == catalog.TypeTTL {
		return nil, fmt.Errorf("check %q is of type ttl: register it at /v1/agent/service/register "+
			"or /v1/agent/check/register", c.CheckId)
	}
	if !isEmpty(b.Definition) {
		if b.Definition[0] != '{' {
			return nil, fmt.Errorf("definition of check %q: must be an object", c.CheckId)
		}
		c.Definition = string(b.Definition)
	}
	return c, nil
}

func (h *handler) catalogDeregister(r *http.Request, q query) (response, error) {
	var body struct{ Node, Datacenter, ServiceID, CheckID string }
	if err := decodeBody(q.body, &body, "object"); err != nil {
		return response{}, err
	}
	if body.Datacenter != "" && body.Datacenter != h.DC {
		return response{}, otherDatacenter(body.Datacenter)
	}
	if body.Node == "" {
		return response{}, badRequest{errors.New("must provide node")}
	}
	err := untilLeader(r.Context(), func(ctx context.Context) error {
		return h.writer.Deregister(ctx, body.Node, body.ServiceID, body.CheckID)
	})
	return response{body: true}, err
}

// agentCheckBody is a check in the body of a request to the agent.
type agentCheckBody struct {
	ID, CheckID, Name, Notes, Status, ServiceID, TTL, Timeout string
	DeregisterCriticalServiceAfter, Interval                  string

	// These fields define a probe.
	HTTP, Method, TLSServerName, TCP, GRPC                              string
	Header                                                              map[string][]string
	TLSSkipVerify, GRPCUseTLS                                           bool
	SuccessBeforePassing, FailuresBeforeWarning, FailuresBeforeCritical uint32

	// These fields define checks that servers do not run.
	Body, UDP, H2PING, DockerContainerID string
	AliasNode, AliasService, OSService   string
	TCPUseTLS                            bool
	Args, ScriptArgs                     []string
}

// toProto returns the check. The id of a check without an id is defaultID.
// service is nil for a check of the node.
func (b agentCheckBody) toProto(node string, service *pb.Service, defaultID string) (*pb.Check, error) {
	c := &pb.Check{
		Node: node, CheckId: cmp.Or(b.CheckID, b.ID, defaultID), Notes: b.Notes,
		Status: cmp.Or(b.Status, catalog.StatusCritical),
	}
	c.Name = cmp.Or(b.Name, c.CheckId)
	if service != nil {
		c.ServiceId, c.Name = service.Id, cmp.Or(b.Name, fmt.Sprintf("Service '%s' check", service.Service))
	}
	if err := b.checkSupported(); err != nil {
		return nil, fmt.Errorf("check %q: %w", c.CheckId, err)
	}
	if err := b.setKind(c); err != nil {
		return nil, fmt.Errorf("check %q: %w", c.CheckId, err)
	}
	if b.DeregisterCriticalServiceAfter != "" {
		after, err := positive("DeregisterCriticalServiceAfter", b.DeregisterCriticalServiceAfter)
		if err != nil {
			return nil, fmt.Errorf("check %q: %w", c.CheckId, err)
		}
		c.DeregisterAfter = durationpb.New(after)
	}
	return c, nil
}

// checkSupported returns an error if servers do not run checks of the kind of b.
func (b agentCheckBody) checkSupported() error {
	for kind, given := range map[string]bool{
		"udp": b.UDP != "", "h2ping": b.H2PING != "", "docker": b.DockerContainerID != "",
		"alias":      b.AliasNode != "" || b.AliasService != "",
		"os_service": b.OSService != "",
		"script":     len(b.Args)+len(b.ScriptArgs) > 0,
	} {
		if given {
			return fmt.Errorf("kind %s: servers run only http, tcp and grpc; give it a TTL, and "+
				"report its status to /v1/agent/check/update/", kind)
		}
	}
	switch {
	case b.Body != "":
		return errors.New("Body: servers send only GET and HEAD requests, without a body")
	case b.TCPUseTLS:
		return errors.New("TCPUseTLS: servers connect without TLS; use HTTP, or leave it out")
	}
	return nil
}

// setKind sets the TTL or the probe of c.
func (b agentCheckBody) setKind(c *pb.Check) error {
	if b.HTTP == "" && b.TCP == "" && b.GRPC == "" {
		ttl, err := positive("TTL", b.TTL)
		if err != nil {
			return err
		}
		c.Type, c.Ttl = catalog.TypeTTL, durationpb.New(ttl)
		return nil
	}
	if b.TTL != "" {
		return errors.New("has a TTL and one of HTTP, TCP and GRPC: only one of them is possible")
	}
	interval, err := positive("Interval", b.Interval)
	if err != nil {
		return err
	}
	interval = min(max(interval, catalog.MinProbeInterval), catalog.MaxProbeInterval)
	c.Probe = &pb.Probe{
		Http: bracketedIPv4.ReplaceAllString(b.HTTP, "$1$2"), Tcp: b.TCP, Grpc: b.GRPC, Method: b.Method,
		Tls: b.GRPCUseTLS, TlsSkipVerify: b.TLSSkipVerify,
		TlsServerName: b.TLSServerName, Interval: durationpb.New(interval),
		SuccessBeforePassing: b.SuccessBeforePassing, FailuresBeforeWarning: b.FailuresBeforeWarning,
		FailuresBeforeCritical: b.FailuresBeforeCritical,
	}
	if b.Timeout != "" {
		timeout, err := positive("Timeout", b.Timeout)
		if err != nil {
			return err
		}
		c.Probe.Timeout = durationpb.New(min(timeout, catalog.MaxProbeTimeout))
	}
	for name, values := range b.Header {
		if c.Probe.Header == nil {
			c.Probe.Header = map[string]*pb.ProbeHeader{}
		}
		c.Probe.Header[name] = &pb.ProbeHeader{Values: values}
	}
	c.Type, c.Interval, c.Timeout = catalog.ProbeType(c.Probe), interval.String(), b.Timeout
	return nil
}

// bracketedIPv4 is a URL with brackets around an IPv4 address, as Fabio registers
// it. Package net/url rejects it.
var bracketedIPv4 = regexp.MustCompile(`^(https?://)\[([0-9.]+)\]`)

// checkProbes returns an error if a check of a registration is of an address to
// which this server does not connect. The server checks the addresses of names
// when it connects.
func (h *handler) checkProbes(all []*pb.Check) error {
	server, _ := netip.ParseAddr(h.Address) // invalid only in tests
	for _, c := range all {
		if c.Probe == nil {
			continue
		}
		host, _, err := catalog.ProbeTarget(c.Probe)
		if err != nil {
			return fmt.Errorf("check %q: %w", c.CheckId, err)
		}
		if ip, err := netip.ParseAddr(host); err == nil {
			if err := catalog.CheckProbeAddress(ip, server, true); err != nil {
				return fmt.Errorf("check %q: %w", c.CheckId, err)
			}
		}
	}
	return nil
}

// positive parses s, the duration in the field of a request.
func positive(field, s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%s %q: must be a duration above 0, such as 15s", field, s)
	}
	return d, nil
}
