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
)

type build struct{ id *tlsutil.Identity }

// Build returns the metrics that describe the program, and the certificate of
// id. A nil id has none.
func Build(id *tlsutil.Identity) prometheus.Collector { return build{id} }

// Describe implements prometheus.Collector.
func (b build) Describe(ch chan<- *prometheus.Desc) {
	ch <- descBuild
	ch <- descCertificate
}

// Collect implements prometheus.Collector.
func (b build) Collect(ch chan<- prometheus.Metric) {
	v := version.Get()
	ch <- prometheus.MustNewConstMetric(descBuild, prometheus.GaugeValue, 1, v.Version, v.Commit, v.Go)
	if b.id != nil {
		ch <- prometheus.MustNewConstMetric(descCertificate, prometheus.GaugeValue, float64(b.id.Expiry().Unix()))
	}
}
