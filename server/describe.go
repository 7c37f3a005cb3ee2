// SPDX-License-Identifier: MPL-2.0

package server

import (
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/tlsutil"
)

// describe describes this server for operators.
func (c *components) describe() *pb.DescribeServerResponse {
	v := version.Get()
	commit := v.Commit
	if v.Modified {
		commit += ", modified"
	}
	out := &pb.DescribeServerResponse{
		PrimaryDatacenter: c.manager.PrimaryDC(),
		Version:           v.Version, Commit: commit, GoVersion: v.Go, Platform: v.Platform,
		StartedAt: timestamppb.New(c.started), Pid: int64(os.Getpid()),
		Goroutines: int64(runtime.NumGoroutine()), Processors: int64(runtime.GOMAXPROCS(0)),
		Files: sizes(c.cfg.DataDir),
		Listeners: []*pb.NamedText{
			{Name: "server", Value: c.tlsListener.Addr().String()}, {Name: "http", Value: c.addrs.HTTP},
		},
	}
	if c.httpSocket != nil {
		out.Listeners = append(out.Listeners, &pb.NamedText{Name: "http_socket", Value: c.cfg.HTTPSocket})
	}
	if c.addrs.Monitor != "" {
		out.Listeners = append(out.Listeners, &pb.NamedText{Name: "monitor", Value: c.addrs.Monitor})
	}
	for _, cert := range c.certificates() {
		name := cert.Subject.CommonName
		if len(cert.DNSNames) > 0 && !cert.IsCA {
			name = cert.DNSNames[0]
		}
		out.Certificates = append(out.Certificates, &pb.ServedCertificate{
			Name: name, NotAfter: timestamppb.New(cert.NotAfter), Ca: cert.IsCA,
		})
	}
	if c.cfg.Settings != nil {
		for _, s := range c.cfg.Settings() {
			out.Settings = append(out.Settings, &pb.NamedText{Name: s.Name, Value: s.Value})
		}
	}
	addProcess(out)
	return out
}

// certificates returns the certificate of this server with its chain, and the
// CAs in CAFile.
func (c *components) certificates() (all []*x509.Certificate) {
	for _, der := range c.network.identity.Chain() {
		if cert, err := x509.ParseCertificate(der); err == nil {
			all = append(all, cert)
		}
	}
	// Without a readable file, the server continues with its present CAs.
	if text, err := os.ReadFile(c.cfg.CAFile); err == nil {
		cas, _ := tlsutil.ParseCerts(text)
		all = append(all, cas...)
	}
	return all
}

// addProcess adds the memory and the open files of this process, where the
// system has them.
func addProcess(out *pb.DescribeServerResponse) {
	families, _ := prometheus.DefaultGatherer.Gather() // with an error, the rest is there
	for _, f := range families {
		to := map[string]*uint64{
			"go_memstats_heap_inuse_bytes": &out.HeapBytes, "process_resident_memory_bytes": &out.ResidentBytes,
			"process_open_fds": &out.OpenFiles, "process_max_fds": &out.MaxOpenFiles,
		}[f.GetName()]
		if to != nil && len(f.GetMetric()) == 1 {
			*to = uint64(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
}

// sizes returns the size of each file and directory in dir.
func sizes(dir string) (all []*pb.NamedSize) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		out := &pb.NamedSize{Name: e.Name()}
		_ = filepath.WalkDir(filepath.Join(dir, e.Name()), func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil // removed since
			}
			if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
				out.Bytes += uint64(info.Size())
			}
			return nil
		})
		all = append(all, out)
	}
	return all
}
