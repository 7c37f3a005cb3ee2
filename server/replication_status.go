// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/api"
)

var (
	descLag       = desc("replication_lag_seconds", "Time since the copies of the primary's records were last known to be true.")
	descRepIndex  = desc("replication_primary_index", "The primary's index that the copies have reached.")
	descRepBytes  = desc("replication_received_bytes_total", "Bytes received from the primary's stream of records, encoded.")
	descRepBegun  = desc("replication_streams_total", "Streams of records, by how they began: resumed, or with a comparison.", "begun")
	descRepRefuse = desc("replication_refused_total", "Records that the primary sent and that are none to store here.")
	descRepCopies = desc("replication_records", "Copies of the primary's records, by type.", "type")
	descRepHidden = desc("replication_unknown_records", "Records of the primary that are not copied, since this version does not know their type.", "type")
	descRepChange = desc("replication_changes_total", "Changes of copies received, by type.", "type")
	descFollowers = desc("replication_followers", "Secondaries that follow this server of the primary.")
	descRepSent   = desc("replication_sent_bytes_total", "Bytes of records sent to secondaries, encoded.")
)

// replication reports what is copied: at the leader of a secondary, and at every server of the primary.
func (c collector) replication(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	if c.p.primacy.IsPrimary() {
		st := c.p.followed.Status()
		gauge(descFollowers, float64(st.Followers))
		count(descRepSent, st.SentBytes)
		count(descRepBegun, st.Resumed, "resumed")
		count(descRepBegun, st.Compared, "compared")
		return
	}
	if !c.p.store.IsLeader() {
		return
	}
	st := c.p.primacy.Follower().Status()
	if !st.LastContact.IsZero() {
		gauge(descLag, lag(st.Connected, st.LastContact).Seconds())
	}
	count(descRepBytes, st.ReceivedBytes)
	count(descRepBegun, st.Resumed, "resumed")
	count(descRepBegun, st.Compared, "compared")
	count(descRepRefuse, st.Refused)
	types, err := c.p.primacy.Follower().TypeStatuses(context.Background()) // of the own memory: it does not wait
	if err != nil {
		return // the store is closed
	}
	index := st.Index
	for _, t := range types {
		index = max(index, t.Index)
		if t.Known {
			gauge(descRepCopies, float64(t.Records), t.Type)
			count(descRepChange, t.Changes, t.Type)
		}
		gauge(descRepHidden, float64(t.Unknown), t.Type)
	}
	gauge(descRepIndex, float64(index))
}

// replicated lists what is copied, at the leader of a secondary.
func (s source) replicated(ctx context.Context) ([]api.ReplicatedType, error) {
	if s.p.primacy.IsPrimary() || !s.p.store.IsLeader() {
		return nil, nil
	}
	types, err := s.p.primacy.Follower().TypeStatuses(ctx)
	if err != nil {
		return nil, err
	}
	st := s.p.primacy.Follower().Status()
	out := make([]api.ReplicatedType, 0, len(types))
	for _, t := range types {
		r := api.ReplicatedType{
			Type: t.Type, Known: t.Known, Records: t.Records, PrimaryRecords: t.Primary, UnknownRecords: t.Unknown,
			PrimaryIndex: t.Index, Changes: t.Changes, ReceivedBytes: t.Bytes,
		}
		if !st.LastContact.IsZero() {
			r.Lag = api.SecondsPtr(lag(st.Connected, st.LastContact))
		}
		if !t.Changed.IsZero() {
			r.LastChange = t.Changed
		}
		out = append(out, r)
	}
	return out, nil
}

// replicationComponent tells how records travel to, or from, this server.
func (s source) replicationComponent() api.ComponentStatus {
	c := api.ComponentStatus{Name: "replication", State: "ok"}
	switch {
	case s.p.primacy.IsPrimary():
		st := s.p.followed.Status()
		c.Detail = fmt.Sprintf("%d secondaries follow this server", st.Followers)
		if st.Followers == 1 {
			c.Detail = "1 secondary follows this server"
		}
	case !s.p.store.IsLeader():
		c.Detail = "done by the leader"
	default:
		st := s.p.primacy.Follower().Status()
		if !st.Connected {
			c.State = "not connected"
		}
		if c.Detail = detailOf(st.LastError, st.LastContact, "last contact"); st.LastError == nil && st.Connected {
			c.Detail = fmt.Sprintf("primary's index %d, %s", st.Index, c.Detail)
		} else {
			has := fmt.Sprintf("copies have the primary's index %d", max(st.Index, s.p.primacy.Follower().HighestIndex()))
			c.Detail = strings.TrimSuffix(has+"; "+c.Detail, "; ")
		}
		if st.Refused > 0 {
			c.State = "refuses records"
		}
	}
	return c
}

// lag is how old copies may be: nothing while the stream is up.
func lag(connected bool, last time.Time) time.Duration {
	if connected {
		return 0
	}
	return time.Since(last)
}
