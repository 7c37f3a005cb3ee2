// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
)

// Ids of the checks of the maintenance mode. Programs such as Fabio compare
// them.
const (
	nodeMaintenance    = "_node_maintenance"
	serviceMaintenance = "_service_maintenance:" // before the id of the service
)

// typeMaintenance is the type of these checks.
const typeMaintenance = "maintenance"

func (h *handler) agentMaintenance(r *http.Request, q query) (response, error) {
	return h.setMaintenance(r, q, &pb.Check{CheckId: nodeMaintenance, Name: "Node Maintenance Mode"})
}

func (h *handler) serviceMaintenance(r *http.Request, q query) (response, error) {
	id := r.PathValue("id")
	err := untilLeader(r.Context(), func(ctx context.Context) error {
		s, err := h.stored.At(ctx, resource.Strong)
		if err == nil && s.Node(h.Node).Service(id) == nil {
			err = statusError{http.StatusNotFound, unknownService(id)}
		}
		return err
	})
	if err != nil {
		return response{}, err
	}
	return h.setMaintenance(r, q, &pb.Check{
		CheckId: serviceMaintenance + id, ServiceId: id, Name: "Service Maintenance Mode",
	})
}

// setMaintenance registers a critical check with ?enable=true, and removes it
// with ?enable=false.
func (h *handler) setMaintenance(r *http.Request, q query, c *pb.Check) (response, error) {
	enable, err := q.flag("enable")
	if err != nil {
		return response{}, err
	}
	if !q.values.Has("enable") {
		return response{}, badRequest{errors.New("missing value for enable: must be true or false")}
	}
	if enable {
		c.Node, c.Status, c.Type = h.Node, catalog.StatusCritical, typeMaintenance
		c.Notes = cmp.Or(q.values.Get("reason"), "Maintenance mode is enabled, and no reason was given.")
		return h.agentRegister(r, catalog.Registration{Checks: []*pb.Check{c}})
	}
	err = untilLeader(r.Context(), func(ctx context.Context) error {
		return h.writer.Deregister(ctx, h.Node, "", c.CheckId)
	})
	return response{body: encoded{}}, err
}

// serviceHealth is a service of this server's node with its health.
type serviceHealth struct {
	AggregatedStatus string
	Service          agentService
	Checks           []api.Check
}

// healthCodes are the HTTP statuses for the statuses of a service, from the best
// to the worst.
var healthCodes = []struct {
	status string
	code   int
}{
	{catalog.StatusPassing, http.StatusOK},
	{catalog.StatusWarning, http.StatusTooManyRequests},
	{catalog.StatusCritical, http.StatusServiceUnavailable},
	{typeMaintenance, http.StatusServiceUnavailable},
}

// severityOf returns the index of the status of a check in healthCodes.
func severityOf(c *catalog.Check) int {
	switch {
	case c.CheckId == nodeMaintenance, strings.HasPrefix(c.CheckId, serviceMaintenance):
		return 3
	case c.Status == catalog.StatusCritical:
		return 2
	case c.Status == catalog.StatusWarning:
		return 1
	}
	return 0
}

// healthOf returns the health of a service, and the index of its status in
// healthCodes.
func (h *handler) healthOf(s *catalog.Service) (serviceHealth, int) {
	worst, checks := 0, s.AllChecks()
	for _, c := range checks {
		worst = max(worst, severityOf(c))
	}
	return serviceHealth{healthCodes[worst].status, agentService{serviceOf(s), h.DC}, checksOf(checks)}, worst
}

func (h *handler) agentHealthByID(r *http.Request, q query) (response, error) {
	id := r.PathValue("id")
	return h.agentHealth(r, q, func(n *catalog.Node) (any, int, error) {
		s := n.Service(id)
		if s == nil {
			return nil, 0, statusError{http.StatusNotFound, fmt.Sprintf("service %q is not registered at %s", id, h.Node)}
		}
		health, severity := h.healthOf(s)
		return health, severity, nil
	})
}

func (h *handler) agentHealthByName(r *http.Request, q query) (response, error) {
	name := r.PathValue("name")
	return h.agentHealth(r, q, func(n *catalog.Node) (any, int, error) {
		var all []serviceHealth
		worst := 0
		for _, s := range n.Services {
			if s.Service.Service == name {
				health, severity := h.healthOf(s)
				all, worst = append(all, health), max(worst, severity)
			}
		}
		if all == nil {
			return nil, 0, statusError{http.StatusNotFound, fmt.Sprintf("no service of name %q is registered at %s", name, h.Node)}
		}
		return all, worst, nil
	})
}

// agentHealth responds with the health that of returns for this server's node.
// The HTTP status is that of the health. With ?format=text, the body
// is only the status.
func (h *handler) agentHealth(
	r *http.Request, q query, of func(n *catalog.Node) (body any, severity int, err error),
) (response, error) {
	severity := 0
	resp, err := h.readCatalog(r, q, func(s *catalog.Snapshot) (body any, err error) {
		body, severity, err = of(registered(s.Node(h.Node)))
		return body, err
	})
	if err != nil {
		return response{}, err
	}
	resp.status = healthCodes[severity].code
	if q.values.Get("format") == "text" {
		resp.body = encoded{false, []byte(healthCodes[severity].status)}
	}
	return resp, nil
}
