// SPDX-License-Identifier: MPL-2.0

package server

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/wanfed"
)

// collector reads what the parts count, at each scrape. Raft, serf and memberlist report by themselves.
type collector struct{ p *parts }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_"+name, help, labels, nil)
}

var (
	descLeader    = desc("leader", "1 while this server leads its datacenter.")
	descWritable  = desc("log_writable", "1 while this server can write its log; 0 when its disk is full, for one.")
	descMembers   = desc("pool_members", "Members of a gossip pool, by status.", "pool", "status")
	descAccepted  = desc("port_accepted_total", "TCP connections accepted on the server port.")
	descRefused   = desc("port_refused_total", "Connections refused on the server port, by reason.", "reason")
	descHTTP      = desc("http_refused_total", "Connections refused on the HTTP port, which has TLS, by reason.", "reason")
	descProtocol  = desc("port_connections_total", "Connections of one protocol on the server port.", "protocol")
	descCalls     = desc("calls_refused_total", "gRPC calls refused for who calls.", "method", "role")
	descSent      = desc("gossip_sent_total", "Gossip packets written to a connection.", "pool", "dc")
	descReceived  = desc("gossip_received_total", "Gossip packets given to a pool.", "pool", "dc")
	descRelayed   = desc("gossip_relayed_total", "Gossip packets handed on to another server of this datacenter.", "pool", "dc")
	descDropped   = desc("gossip_dropped_total", "Gossip packets dropped, by reason.", "pool", "dc", "reason")
	descConnected = desc("gossip_link_connected", "1 while the packet link is connected.", "dc", "node")
	descQueued    = desc("gossip_link_queued", "Packets that wait in a link's queue.", "dc", "node")
	descSessions  = desc("stream_session_connected", "1 while the stream session is connected.", "dc", "node")
	descClosed    = desc("gossip_closed_total", "Incoming connections and streams closed for a fault, by reason.", "reason")
	descDials     = desc("dial_attempts_total", "Dials, by datacenter and hop.", "dc", "addr", "via")
	descDialFails = desc("dial_failures_total", "Dials that failed.", "dc", "addr", "via")
	descDialRTT   = desc("dial_handshake_seconds", "Duration of the last TLS handshake through a hop.", "dc", "addr", "via")
	descKeys      = desc("keyring_keys", "Gossip keys of this server; 0: gossip is not encrypted.")
	descKeysVsn   = desc("keyring_version", "Changes that operators made to the gossip keys; 0: none, or not known here.")
	descProbes    = desc("probe_attempts_total", "Probes of a whole path, to a server and back, by datacenter and hop.", "dc", "addr", "via")
	descProbeFail = desc("probe_failures_total", "Probes that failed.", "dc", "addr", "via")
	descPathOK    = desc("path_ok", "1 when the last dial, probe or echo of the path worked.", "dc", "addr", "via")
	descPathRTT   = desc("path_rtt_seconds", "Smoothed round trip to a server of the datacenter over the hop.", "dc", "addr", "via")
)

// Describe implements prometheus.Collector: unchecked, since labels come and go.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descLeader, one(c.p.store.IsLeader()))
	gauge(descWritable, one(c.p.store.WriteError() == nil))
	for name, members := range map[string][]gossip.Member{"lan": c.p.lan.Members(), "wan": c.p.wan.Members()} {
		n := map[gossip.Status]int{gossip.StatusAlive: 0, gossip.StatusFailed: 0, gossip.StatusLeft: 0}
		for _, m := range members {
			n[m.Status]++
		}
		for status, v := range n {
			gauge(descMembers, float64(v), name, status.String())
		}
	}
	keys := c.p.keyring.Self()
	gauge(descKeys, float64(len(keys.Fingerprints)))
	gauge(descKeysVsn, float64(keys.Version))
	port := c.p.mux.Stats()
	count(descAccepted, port.Accepted)
	for reason, v := range port.Refused {
		count(descRefused, v, reason)
	}
	for reason, v := range c.p.httpMux.Stats().Refused {
		count(descHTTP, v, reason)
	}
	for _, p := range port.Protocols {
		count(descProtocol, p.Total, p.ALPN)
	}
	for kind, v := range c.p.edge.Denied() {
		count(descCalls, v, kind.Method, string(kind.Role))
	}
	c.tunnel(gauge, count)
	for _, p := range c.p.dialer.Paths() {
		count(descDials, p.Attempts, p.DC, p.Addr, p.Via)
		count(descDialFails, p.Failures, p.DC, p.Addr, p.Via)
		gauge(descDialRTT, p.RTT.Seconds(), p.DC, p.Addr, p.Via)
		if p.DC != c.p.cfg.DC {
			count(descProbes, p.Probes, p.DC, p.Addr, p.Via)
			count(descProbeFail, p.ProbeFailures, p.DC, p.Addr, p.Via)
			gauge(descPathOK, one(p.Health == wanfed.PathOK), p.DC, p.Addr, p.Via)
			gauge(descPathRTT, p.SmoothedRTT.Seconds(), p.DC, p.Addr, p.Via)
		}
	}
	c.primary(gauge)
	c.replication(gauge, count)
}

func (c collector) tunnel(gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, uint64, ...string)) {
	s := c.p.tunnel.Stats()
	for _, t := range s.Traffic {
		p := poolName(t.Pool)
		count(descSent, t.Sent, p, t.DC)
		count(descReceived, t.Received, p, t.DC)
		count(descRelayed, t.Relayed, p, t.DC)
		for reason, v := range t.Dropped {
			count(descDropped, v, p, t.DC, reason)
		}
	}
	for _, l := range s.Links {
		gauge(descConnected, one(!l.ConnectedSince.IsZero()), l.DC, l.Node)
		gauge(descQueued, float64(l.Queued), l.DC, l.Node)
	}
	sessions := map[[2]string]float64{} // those to addresses whose node is not known yet, as while joining, have the same labels
	for _, l := range s.Sessions {
		of := [2]string{l.DC, l.Node}
		sessions[of] = max(sessions[of], one(!l.ConnectedSince.IsZero()))
	}
	for of, connected := range sessions {
		gauge(descSessions, connected, of[0], of[1])
	}
	for reason, v := range s.Closed {
		count(descClosed, v, reason)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func poolName(p wanfed.Pool) string {
	switch p {
	case wanfed.PoolWAN:
		return "wan"
	case wanfed.PoolLAN:
		return "lan"
	}
	return strconv.Itoa(int(p))
}
