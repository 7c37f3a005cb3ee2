// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"errors"
	"fmt"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// Limits of what a record holds besides names.
const (
	maxPairs      = 64 // of metadata
	maxPairKey    = 128
	maxPairValue  = 512
	maxDefinition = 4 << 10
	// MaxOutput bounds what a check says of itself, in bytes.
	MaxOutput = 4 << 10
)

func validateNode(r *pb.Resource) error {
	n, err := resource.Decode[*pb.Node](r)
	if err != nil {
		return err
	}
	if n.Address == "" {
		return fmt.Errorf("data.address of node %.300q is empty", n.Node)
	}
	return checkNode(n)
}

func checkNode(n *pb.Node) error {
	return errors.Join(checkText("node", n.Node), checkPairs("node metadata", n.Meta))
}

func validateService(r *pb.Resource) error {
	s, err := resource.Decode[*pb.Service](r)
	if err != nil {
		return err
	}
	return checkService(s)
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
	if s.Kind == KindMeshGateway { // its own limit: see checkMeta
		return nil
	}
	return checkPairs("service metadata", s.Meta)
}

func validateCheck(r *pb.Resource) error {
	c, err := resource.Decode[*pb.Check](r)
	if err != nil {
		return err
	}
	return checkCheck(c)
}

func checkCheck(c *pb.Check) error {
	switch {
	case c.Status != StatusPassing && c.Status != StatusWarning && c.Status != StatusCritical:
		return fmt.Errorf("status of check %.300q is %.30q: not passing, warning or critical", c.CheckId, c.Status)
	case len(c.Output) > MaxOutput:
		return fmt.Errorf("output of check %.300q has %d bytes: more than %d", c.CheckId, len(c.Output), MaxOutput)
	case len(c.Definition) > maxDefinition:
		return fmt.Errorf("definition of check %.300q has %d bytes: more than %d", c.CheckId, len(c.Definition), maxDefinition)
	case c.GetTtl().AsDuration() < 0 || c.GetDeregisterAfter().AsDuration() < 0:
		return fmt.Errorf("a time of check %.300q is negative", c.CheckId)
	}
	return nil
}

func checkPairs(what string, pairs map[string]string) error {
	if len(pairs) > maxPairs {
		return fmt.Errorf("%s has %d pairs: more than %d", what, len(pairs), maxPairs)
	}
	for k, v := range pairs {
		if k == "" || len(k) > maxPairKey || len(v) > maxPairValue {
			return fmt.Errorf("%s %.130q: a key has 1 to %d bytes, a value at most %d", what, k, maxPairKey, maxPairValue)
		}
	}
	return nil
}

// checkEntry looks at what the entry says; what is stored is another matter.
func checkEntry(e Entry) error {
	if err := checkNode(e.Node); err != nil {
		return err
	}
	if e.Service != nil {
		if err := errors.Join(checkService(e.Service), checkRecordName(e.Node.Node, e.Service.Id)); err != nil {
			return err
		}
	}
	for _, c := range e.Checks {
		if err := errors.Join(checkText("check id", c.CheckId), checkRecordName(e.Node.Node, c.CheckId), checkCheck(c)); err != nil {
			return err
		}
	}
	return nil
}
