// SPDX-License-Identifier: MPL-2.0

package monitor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/tlsutil"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("wanfed_"+name, help, labels, nil)
}

var (
	descBuild       = desc("build_info", "Always 1; the labels describe the program.", "version", "commit", "go")
	descCertificate = desc("certificate_expiry_timestamp_seconds",
		"Time at which the certificate of this process or its CA expires, since 1970.")
	descLife = desc("certificate_life_seconds",
		"Time for which the certificate of this process is valid from its creation on.")
	descRenewals = desc("certificate_renewals_total",
		"Attempts to renew the certificate of this process, by result.", "result")
	descEnded = desc("tls_ended_total",
		"Open connections closed because the certificate of the peer expired, was revoked, or lost its CA.")
	descList     = desc("tls_revocation_list_number", "Number of a revocation list in force.", "issuer")
	descListTime = desc("tls_revocation_list_timestamp_seconds",
		"Time at which a revocation list in force was created, since 1970.", "issuer")
)

type build struct{ id *tlsutil.Identity }

// Build returns the metrics that describe the program, and the certificate, the
// revocation lists and the closed connections of id. A nil id has none.
func Build(id *tlsutil.Identity) prometheus.Collector { return build{id} }

// Describe implements prometheus.Collector.
func (b build) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBuild, descCertificate, descLife, descRenewals, descEnded, descList, descListTime} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (b build) Collect(ch chan<- prometheus.Metric) {
	v := version.Get()
	ch <- prometheus.MustNewConstMetric(descBuild, prometheus.GaugeValue, 1, v.Version, v.Commit, v.Go)
	if b.id == nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(descCertificate, prometheus.GaugeValue, float64(b.id.Expiry().Unix()))
	leaf := b.id.Leaf()
	ch <- prometheus.MustNewConstMetric(descLife, prometheus.GaugeValue, leaf.NotAfter.Sub(leaf.NotBefore).Seconds())
	renewal := b.id.Renewal()
	ch <- prometheus.MustNewConstMetric(descRenewals, prometheus.CounterValue, float64(renewal.Count), "ok")
	ch <- prometheus.MustNewConstMetric(descRenewals, prometheus.CounterValue, float64(renewal.Failures), "failed")
	ch <- prometheus.MustNewConstMetric(descEnded, prometheus.CounterValue, float64(b.id.EndedConnections()))
	for _, l := range b.id.RevocationLists() {
		number, _ := l.Number.Float64()
		ch <- prometheus.MustNewConstMetric(descList, prometheus.GaugeValue, number, l.ID())
		ch <- prometheus.MustNewConstMetric(descListTime, prometheus.GaugeValue, float64(l.Created.Unix()), l.ID())
	}
}
