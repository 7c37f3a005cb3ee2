// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/tlsutil"
)

const (
	// statusInterval is the time between two evaluations of the status for a
	// watch. The status depends on many parts of the server and on the clock,
	// so no single event announces its change.
	statusInterval = 500 * time.Millisecond
	// statusRefresh is the time after which a watch sends an unchanged status,
	// with its current ages. The event is also the heartbeat of the connection.
	statusRefresh = 5 * time.Second
	// maxWatches bounds the watches of the status of one peer. All clients
	// without a certificate are one peer.
	maxWatches = 64
)

var errTooManyWatches = statusError{http.StatusServiceUnavailable,
	fmt.Sprintf("you have %d watches of the status: end one of them first", maxWatches)}

// watchStatus sends the status as server-sent events until one side ends the
// watch. It sends the first event at once, and then one after each change and
// after statusRefresh. The last event is api.EventEnd with the reason, if the
// server ends the watch.
func (h *handler) watchStatus(w http.ResponseWriter, r *http.Request) {
	p, _ := tlsutil.PeerFromContext(r.Context())
	slot := h.watches.TryAcquire(p)
	if slot == nil {
		writeFailure(w, r, errTooManyWatches)
		return
	}
	defer slot.Release()
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header["X-Content-Type-Options"] = headerNosniff
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	var sent []byte // without ages
	var sentAt time.Time
	for {
		s, err := h.currentStatus(r)
		if err != nil {
			if r.Context().Err() != nil {
				err = errors.New("this server is stopping: watch again, or use another server")
			}
			_ = sendEvent(w, api.EventEnd, map[string]string{"error": err.Error()}) // the watch ends in both cases
			return
		}
		if steady, now := withoutAges(s), time.Now(); !bytes.Equal(steady, sent) || now.Sub(sentAt) >= statusRefresh {
			if sendEvent(w, api.EventStatus, s) != nil {
				return // the client has disconnected or does not read
			}
			sent, sentAt = steady, now
		}
		select {
		case <-tick.C:
		case <-r.Context().Done(): // currentStatus returns the error
		}
	}
}

// currentStatus returns the status, if the caller still has the right to read it.
func (h *handler) currentStatus(r *http.Request) (api.Status, error) {
	if err := errors.Join(r.Context().Err(), h.authorizeRead(r, federation)); err != nil {
		return api.Status{}, err
	}
	s, err := h.Cluster.Status(r.Context())
	s.Datacenters = orEmpty(s.Datacenters)
	s.Components = orEmpty(s.Components)
	return s, err
}

// withoutAges returns s as JSON without the values that change while the
// federation does not: ages, measurements and details.
func withoutAges(s api.Status) []byte {
	s.Datacenters, s.Components = slices.Clone(s.Datacenters), slices.Clone(s.Components)
	for i := range s.Datacenters {
		d := &s.Datacenters[i]
		d.RecordAge, d.ReplicationLag, d.LastErrorAt, d.LastError = nil, nil, time.Time{}, ""
		d.Paths = slices.Clone(d.Paths)
		for j := range d.Paths {
			p := &d.Paths[j]
			p.RTT, p.KnowledgeAge, p.LastSuccess, p.LastFailure, p.LastError = nil, nil, time.Time{}, time.Time{}, ""
		}
	}
	for i := range s.Components {
		s.Components[i].Detail = ""
	}
	s.Replicated = nil
	b, _ := json.Marshal(s) // the fields of a status can be encoded
	return b
}

// sendEvent sends a server-sent event. It fails if the client has disconnected
// or does not read for writeTimeout.
func sendEvent(w http.ResponseWriter, name string, data any) error {
	body, err := json.Marshal(data)
	if err != nil {
		return err
	}
	setWriteDeadline(w, writeTimeout)
	if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, body); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
