// SPDX-License-Identifier: MPL-2.0

package status

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/wanfed"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_"+name, help, labels, nil)
}

var (
	descLeader   = desc("leader", "1 while this server leads its datacenter.")
	descWritable = desc("log_writable", "1 while this server can write its log; 0 for example when its disk is full.")
	descDiverged = desc("store_differs", "1 for each server whose store differs from that of a majority.", "node")
	descSnapshot = desc("snapshot_last_success_timestamp_seconds",
		"Time of the last scheduled snapshot that this server wrote, since 1970. Absent without one.")
	descMembers  = desc("pool_members", "Members of a gossip pool, by status.", "pool", "status")
	descAccepted = desc("port_accepted_total", "TCP connections accepted on the server port.")
	descRefused  = desc("port_refused_total", "Connections refused on the server port, by reason.", "reason")
	descHTTP     = desc("http_refused_total", "Connections refused on the HTTP port with TLS, by reason.", "reason")
	descProtocol = desc("port_connections_total", "Connections of one protocol on the server port.", "protocol")
	descAudit    = desc("audit_writable",
		"1 while this server can write its audit log; 0 for example when its disk is full. Absent without one.")
	descAuditLines = desc("audit_lines_total",
		"Lines of the audit log: written, dropped, or refused with the write to which they belong.", "result")
	descCalls = desc("calls_refused_total", "gRPC calls denied, by method and role of the caller.",
		"method", "role")
	descSent     = desc("gossip_sent_total", "Gossip packets written to a connection.", "pool", "dc")
	descReceived = desc("gossip_received_total", "Gossip packets delivered to a pool.", "pool", "dc")
	descRelayed  = desc("gossip_relayed_total", "Gossip packets forwarded to another server of this datacenter.",
		"pool", "dc")
	descDropped  = desc("gossip_dropped_total", "Gossip packets dropped, by reason.", "pool", "dc", "reason")
	descRejected = desc("gossip_refused_total", "Gossip packets, messages and state exchanges refused, by reason.",
		"pool", "reason")
	descConnected = desc("gossip_link_connected", "1 while the packet link has a connection of its own.", "dc", "node")
	descQueued    = desc("gossip_link_queued", "Packets in the queue of a link.", "dc", "node")
	descSessions  = desc("stream_session_connected", "1 while the stream session is connected.", "dc", "node")
	descClosed    = desc("gossip_closed_total", "Incoming connections and streams closed for a fault, by reason.",
		"reason")
	descDials     = desc("dial_attempts_total", "Dials, by datacenter and path.", "dc", "addr", "via")
	descDialFails = desc("dial_failures_total", "Dials that failed.", "dc", "addr", "via")
	descDialRTT   = desc("dial_handshake_seconds", "Duration of the last TLS handshake over a path.", "dc",
		"addr", "via")
	descKeys = desc("keyring_keys", "Gossip keys of this server; 0: gossip is not encrypted.")
	// The version of a keyring counts the changes that operators made to it.
	descKeysVsn = desc("keyring_version",
		"Version of the gossip keyring: changes by operators; 0: none, or unknown here.")
	descProbes    = desc("probe_attempts_total", "Probes of a whole path, to a server and back.", "dc", "addr", "via")
	descProbeFail = desc("probe_failures_total", "Probes that failed.", "dc", "addr", "via")
	descPathOK    = desc("path_ok",
		"1 when the last dial, probe or echo over the path worked, within three probe intervals.", "dc", "addr", "via")
	descPathRTT = desc("path_rtt_seconds",
		"Smoothed round-trip time to a server of the datacenter over the path.", "dc", "addr", "via")

	descReachable = desc("datacenter_reachable",
		"1 while a path works, 0 while none does; direction is outbound or inbound. Absent while unknown.", "dc",
		"direction")

	descUnreachable = desc("gateway_unreachable",
		"1 for each gateway to which a datacenter, from, cannot connect while another gateway of dc works.",
		"dc", "gateway", "addr", "from")

	descPrimary    = desc("primary", "1 for the datacenter that owns federated resources.", "dc")
	descEpoch      = desc("primary_epoch", "Number of the primary's epoch; it grows with each change of the primary.")
	descSuperseded = desc("primary_superseded",
		"1 while another datacenter with a higher epoch has replaced the primary of this one.")
	descDisputed = desc("primary_disputed", "1 for each other datacenter whose servers name another primary.",
		"dc", "primary")
	descRivals = desc("primaries",
		"Datacenters known to be a primary; more than 1 is a fault. The leader alone knows others.")
	descClones = desc("primary_clones",
		"Servers of the primary that run more than once; more than 0 is a fault. They and some secondaries know it.")
	descDiffer = desc("primary_servers_differ",
		"Living servers of this datacenter whose primary_datacenter differs from this server's.")

	descLag      = desc("replication_lag_seconds", "Time since the replicas were last known to be up to date.")
	descRepIndex = desc("replication_primary_index", "Index of the primary that the replicas have reached.")
	descRepBytes = desc("replication_received_bytes_total", "Bytes received from the primary's stream, encoded.")
	descRepBegun = desc("replication_streams_total",
		"Streams, by how they began: resumed, or with a comparison.", "begun")
	descRepRefuse = desc("replication_refused_total", "Resources of the primary that this datacenter cannot store.")
	descRepCopies = desc("replication_records", "Replicas, by type.", "type")
	descRepHidden = desc("replication_unknown_records",
		"Resources of the primary that are not replicated, because this version does not know their type.", "type")
	descRepChange = desc("replication_changes_total", "Changes of replicas received, by type.", "type")
	descFollowers = desc("replication_followers", "Secondaries that follow this server of the primary.")
	descRepSent   = desc("replication_sent_bytes_total", "Bytes sent to secondaries, encoded.")
)

// Describe implements prometheus.Collector. It sends no descriptions, because
// the label values, and therefore the metrics, change while the server runs.
func (*Reporter) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It reads the counters of the
// components. Raft, serf and memberlist register their own metrics.
func (r *Reporter) Collect(ch chan<- prometheus.Metric) {
	s := scrape{ch}
	s.gauge(descLeader, one(r.cfg.Store.IsLeader()))
	s.gauge(descWritable, one(r.cfg.Store.WriteError() == nil))
	for _, node := range r.cfg.Operator.Comparison().Differ {
		s.gauge(descDiverged, 1, node)
	}
	if last := r.cfg.Snapshots.Status().Last; !last.IsZero() {
		s.gauge(descSnapshot, float64(last.Unix()))
	}
	for name, pool := range map[string]*gossip.Pool{"lan": r.cfg.LAN, "wan": r.cfg.WAN} {
		for reason, v := range pool.Refused() {
			s.count(descRejected, v, name, reason)
		}
		n := map[gossip.Status]int{gossip.StatusAlive: 0, gossip.StatusFailed: 0, gossip.StatusLeft: 0}
		for _, m := range pool.Members() {
			n[m.Status]++
		}
		for status, v := range n {
			s.gauge(descMembers, float64(v), name, status.String())
		}
	}
	keys := r.cfg.Keyring.Self()
	s.gauge(descKeys, float64(len(keys.Fingerprints)))
	s.gauge(descKeysVsn, float64(keys.Version))
	for reason, v := range r.cfg.HTTPMux.Stats().Refused {
		s.count(descHTTP, v, reason)
	}
	for kind, v := range r.cfg.Edge.Denied() {
		s.count(descCalls, v, kind.Method, string(kind.Role))
	}
	if r.cfg.Audit != nil {
		st := r.cfg.Audit.Stats()
		s.gauge(descAudit, one(st.Err == nil))
		s.count(descAuditLines, st.Written, "written")
		s.count(descAuditLines, st.Dropped, "dropped")
		s.count(descAuditLines, st.Refused, "refused")
	}
	r.collectPort(s)
	r.collectTunnel(s)
	r.collectPaths(s)
	r.collectPrimary(s)
	r.collectReplication(s)
}

func (r *Reporter) collectPort(s scrape) {
	port := r.cfg.Mux.Stats()
	s.count(descAccepted, port.Accepted)
	for reason, v := range port.Refused {
		s.count(descRefused, v, reason)
	}
	for _, p := range port.Protocols {
		s.count(descProtocol, p.Total, p.ALPN)
	}
}

func (r *Reporter) collectTunnel(s scrape) {
	stats := r.cfg.Tunnel.Stats()
	for _, t := range stats.Traffic {
		p := t.Pool.String()
		s.count(descSent, t.Sent, p, t.DC)
		s.count(descReceived, t.Received, p, t.DC)
		s.count(descRelayed, t.Relayed, p, t.DC)
		for reason, v := range t.Dropped {
			s.count(descDropped, v, p, t.DC, reason)
		}
	}
	for _, l := range stats.Links {
		s.gauge(descConnected, one(!l.ConnectedSince.IsZero()), l.DC, l.Node)
		s.gauge(descQueued, float64(l.Queued), l.DC, l.Node)
	}
	// Sessions without a known node have equal labels, so they share a metric.
	sessions := map[[2]string]float64{}
	for _, l := range stats.Sessions {
		key := [2]string{l.DC, l.Node}
		sessions[key] = max(sessions[key], one(!l.ConnectedSince.IsZero()))
	}
	for key, connected := range sessions {
		s.gauge(descSessions, connected, key[0], key[1])
	}
	for reason, v := range stats.Closed {
		s.count(descClosed, v, reason)
	}
}

func (r *Reporter) collectPaths(s scrape) {
	for _, p := range r.cfg.Dialer.Paths() {
		s.count(descDials, p.Attempts, p.DC, p.Addr, p.Via)
		s.count(descDialFails, p.Failures, p.DC, p.Addr, p.Via)
		s.gauge(descDialRTT, p.RTT.Seconds(), p.DC, p.Addr, p.Via)
		if p.DC != r.cfg.DC {
			s.count(descProbes, p.Probes, p.DC, p.Addr, p.Via)
			s.count(descProbeFail, p.ProbeFailures, p.DC, p.Addr, p.Via)
			s.gauge(descPathRTT, p.SmoothedRTT.Seconds(), p.DC, p.Addr, p.Via)
		}
	}
	dcs, err := r.datacenters(context.Background()) // reads memory, and does not wait
	if err != nil {
		return // the store is closed
	}
	for _, d := range dcs {
		for _, p := range d.Paths {
			s.gauge(descPathOK, one(p.Health == string(wanfed.PathOK)), d.Name, p.Address, p.Via)
		}
		for _, u := range d.UnreachableGateways {
			for _, from := range u.From {
				s.gauge(descUnreachable, 1, d.Name, u.Gateway, u.Address, from)
			}
		}
		for direction, state := range map[string]api.Direction{"outbound": d.Outbound, "inbound": d.Inbound} {
			if state == api.DirectionOK || state == api.DirectionFailing {
				s.gauge(descReachable, one(state == api.DirectionOK), d.Name, direction)
			}
		}
	}
}

func (r *Reporter) collectPrimary(s scrape) {
	s.gauge(descPrimary, 1, r.cfg.Primary.manager.PrimaryDC())
	s.gauge(descEpoch, float64(r.cfg.Primary.manager.Epoch()))
	s.gauge(descSuperseded, one(r.cfg.Primary.manager.SupersededBy() != replication.Epoch{}))
	s.gauge(descRivals, float64(1+len(r.cfg.Primary.otherPrimaries())))
	for _, d := range r.cfg.Primary.conflicts.List() {
		s.gauge(descDisputed, 1, d.DC, d.Primary)
	}
	s.gauge(descClones, float64(len(r.clones())))
	_, different := r.cfg.Primary.settings.differences()
	s.gauge(descDiffer, float64(different))
}

// collectReplication reads the replication counters. In the primary, each
// server has a source with counters. In a secondary, the leader has a follower
// with counters.
func (r *Reporter) collectReplication(s scrape) {
	if r.cfg.Primary.manager.IsPrimary() {
		st := r.cfg.Source.Status()
		s.gauge(descFollowers, float64(st.Followers))
		s.count(descRepSent, st.SentBytes)
		s.count(descRepBegun, st.Resumed, "resumed")
		s.count(descRepBegun, st.Compared, "compared")
		return
	}
	if !r.cfg.Store.IsLeader() {
		return
	}
	follower := r.cfg.Primary.manager.Follower()
	st := follower.Status()
	if !st.LastContact.IsZero() {
		s.gauge(descLag, lag(st.Connected, st.LastContact).Seconds())
	}
	s.count(descRepBytes, st.ReceivedBytes)
	s.count(descRepBegun, st.Resumed, "resumed")
	s.count(descRepBegun, st.Compared, "compared")
	s.count(descRepRefuse, st.Refused)
	types, err := follower.TypeStatuses(context.Background()) // reads memory, and does not wait
	if err != nil {
		return // the store is closed
	}
	index := st.Index
	for _, t := range types {
		index = max(index, t.Index)
		if t.Known {
			s.gauge(descRepCopies, float64(t.Records), t.Type)
			s.count(descRepChange, t.Changes, t.Type)
		}
		s.gauge(descRepHidden, float64(t.Unknown), t.Type)
	}
	s.gauge(descRepIndex, float64(index))
}

// scrape receives the metrics of one scrape.
type scrape struct{ ch chan<- prometheus.Metric }

func (s scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s scrape) count(d *prometheus.Desc, v uint64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
