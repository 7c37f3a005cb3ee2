// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/netaddr"
)

// Limits of the fields of a resource, in bytes unless noted.
const (
	maxName         = 250 // name or id of a node, service or check
	maxResourceName = 512
	maxPairs        = 64 // number of metadata entries
	maxPairKey      = 128
	maxPairValue    = 512
	maxDefinition   = 4 << 10
	// maxGatewayMeta bounds all metadata of a gateway together.
	maxGatewayMeta = 4 << 10
	// MaxOutput bounds the output of a check, in bytes.
	MaxOutput = 4 << 10
)

func checkStoredNode(n *pb.Node) error {
	if n.Address == "" {
		return fmt.Errorf("data.address of node %.300q is empty", n.Node)
	}
	return checkNode(n)
}

// checkRegistration checks the fields of a registration. It does not compare
// them with the stored catalog.
func checkRegistration(reg Registration) error {
	if err := checkNode(reg.Node); err != nil {
		return err
	}
	if s := reg.Service; s != nil {
		if err := errors.Join(checkService(s), checkResourceName(reg.Node.Node, s.Id)); err != nil {
			return err
		}
	}
	for _, c := range reg.Checks {
		err := errors.Join(checkText("check id", c.CheckId), checkResourceName(reg.Node.Node, c.CheckId), checkCheck(c))
		if err != nil {
			return err
		}
	}
	return nil
}

func checkNode(n *pb.Node) error {
	return errors.Join(checkText("node", n.Node), checkPairs("node metadata", n.Meta))
}

func checkService(s *pb.Service) error {
	if err := errors.Join(checkText("service id", s.Id), checkText("service name", s.Service)); err != nil {
		return err
	}
	if s.Port > 65535 {
		return fmt.Errorf("port of service %q is %d: more than 65535", s.Id, s.Port)
	}
	for tag, a := range s.TaggedAddresses {
		if err := CheckAddress(a); err != nil {
			return fmt.Errorf("tagged address %q of service %q: %w", tag, s.Id, err)
		}
	}
	if s.Kind == KindMeshGateway { // checkGatewayMeta checks the metadata
		return nil
	}
	return checkPairs("service metadata", s.Meta)
}

func checkCheck(c *pb.Check) error {
	switch {
	case !isStatus(c.Status):
		return fmt.Errorf("status of check %.300q is %.30q: not passing, warning or critical", c.CheckId, c.Status)
	case len(c.Output) > MaxOutput:
		return fmt.Errorf("output of check %.300q has %d bytes: more than %d", c.CheckId, len(c.Output), MaxOutput)
	case len(c.Definition) > maxDefinition:
		return fmt.Errorf("definition of check %.300q has %d bytes: more than %d",
			c.CheckId, len(c.Definition), maxDefinition)
	case c.GetTtl().AsDuration() < 0 || c.GetDeregisterAfter().AsDuration() < 0:
		return fmt.Errorf("TTL or deregistration limit of check %.300q is negative", c.CheckId)
	case c.Probe != nil && (c.Type != ProbeType(c.Probe) || c.GetTtl().AsDuration() > 0):
		return fmt.Errorf("check %.300q of type %.30q has a probe of type %q: the types must be equal, without a TTL",
			c.CheckId, c.Type, ProbeType(c.Probe))
	}
	if err := checkProbe(c.Probe); err != nil {
		return fmt.Errorf("check %.300q: %w", c.CheckId, err)
	}
	return nil
}

func isStatus(s string) bool { return s == StatusPassing || s == StatusWarning || s == StatusCritical }

func checkPairs(field string, pairs map[string]string) error {
	if len(pairs) > maxPairs {
		return fmt.Errorf("%s has %d pairs: more than %d", field, len(pairs), maxPairs)
	}
	for k, v := range pairs {
		if k == "" || len(k) > maxPairKey || len(v) > maxPairValue {
			return fmt.Errorf("%s %.130q: a key has 1 to %d bytes, a value at most %d", field, k, maxPairKey,
				maxPairValue)
		}
	}
	return nil
}

func checkGatewayMeta(meta map[string]string) error {
	n := 0
	for k, v := range meta {
		n += len(k) + len(v)
	}
	if n > maxGatewayMeta {
		return fmt.Errorf("meta has %d bytes: more than %d", n, maxGatewayMeta)
	}
	return nil
}

// checkText checks a name or id. As in Consul, a name or id has 1 to maxName
// bytes of UTF-8 without control characters. field is its name in errors.
func checkText(field, s string) error {
	switch {
	case s == "":
		return errors.New(field + " is empty")
	case len(s) > maxName:
		return fmt.Errorf("%s %.30q... has %d bytes: more than %d", field, s, len(s), maxName)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%s %q is not UTF-8 without control characters", field, s)
	}
	return nil
}

// checkResourceName checks the length of the name of a resource.
func checkResourceName(node, id string) error {
	if n := len(resourceName(node, id)); n > maxResourceName {
		return fmt.Errorf("node %.30q... and id %.30q... have %d bytes together: more than %d", node, id, n,
			maxResourceName)
	}
	return nil
}

// CheckAddress returns an error unless gateways of other datacenters can dial
// a: the host must be an IP address or a DNS name, and the port 1 to 65535.
func CheckAddress(a *pb.Address) error {
	if a.GetPort() == 0 || a.GetPort() > 65535 {
		return errors.New("port is not a number from 1 to 65535")
	}
	host := a.GetAddress()
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() {
			return fmt.Errorf("%s is unspecified: it cannot be dialed", ip)
		}
		return nil
	}
	if len(host) > 253 {
		return fmt.Errorf("host %.20q... is longer than 253 characters", host)
	}
	if netaddr.CheckDNSName(strings.ToLower(strings.TrimSuffix(host, "."))) != nil {
		return fmt.Errorf("host %q is neither an IP address nor a DNS name", host)
	}
	return nil
}

// parseAddr parses host:port. Errors begin with kind, for example "WAN".
func parseAddr(kind, s string) (*pb.Address, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return nil, fmt.Errorf("%s address %.300q is not host:port", kind, s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		n = 0 // CheckAddress rejects it
	}
	a := &pb.Address{Address: host, Port: uint32(n)}
	if err := CheckAddress(a); err != nil {
		return nil, fmt.Errorf("%s address %.300q: %w", kind, s, err)
	}
	return a, nil
}
