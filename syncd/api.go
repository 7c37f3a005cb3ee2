// SPDX-License-Identifier: MPL-2.0

package syncd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation"
	"github.com/wanfed/wanfed/automation/config"
	"github.com/wanfed/wanfed/automation/ctsapi"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/lease"
	"github.com/wanfed/wanfed/resource"
)

// listen opens the listener of the HTTP API. Without TLS, it is on the loopback.
func (p *process) listen() (net.Listener, error) {
	port := strconv.Itoa(p.files.Port)
	cfg, err := apiTLS(p.files.TLS)
	switch {
	case err != nil:
		return nil, err
	case cfg == nil:
		return net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	}
	return tls.Listen("tcp", ":"+port, cfg)
}

// apiTLS returns the TLS configuration of the HTTP API, or nil without TLS.
func apiTLS(t config.TLS) (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if t.VerifyIncoming {
		if cfg.ClientCAs, err = loadCAs(t.CACert, t.CAPath); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// loadCAs reads the certificates of a file, or of the files of a directory.
func loadCAs(file, dir string) (*x509.CertPool, error) {
	paths := []string{file}
	if file == "" {
		var err error
		if paths, err = filepath.Glob(filepath.Join(dir, "*")); err != nil {
			return nil, err
		}
	}
	pool := x509.NewCertPool()
	found := false
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		found = pool.AppendCertsFromPEM(b) || found
	}
	if !found {
		return nil, fmt.Errorf("no certificate in %s", strings.Join(paths, ", "))
	}
	return pool, nil
}

// serveAPI serves the HTTP API of CTS, and /metrics, until ctx ends.
func (p *process) serveAPI(ctx context.Context, ln net.Listener, t *tasks) error {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(t.daemon, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	host, _ := os.Hostname() // an empty name permits only localhost
	mux := http.NewServeMux()
	mux.Handle("/", ctsapi.New(t, []string{host, p.files.Address}))
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the HTTP API: %w", err)
	}
	return nil
}

// tasks implements ctsapi.Tasks on the resources of the servers.
type tasks struct {
	*process
	daemon    *automation.Daemon
	resources pb.ResourceServiceClient
}

// List implements ctsapi.Tasks.
func (t *tasks) List(ctx context.Context) ([]ctsapi.Task, error) {
	resp, err := t.resources.List(ctx, &pb.ListRequest{Type: task.Type})
	if err != nil {
		return nil, resource.FromStatus(err)
	}
	var out []ctsapi.Task
	for _, r := range resp.GetResources() {
		data, err := resource.Decode[*pb.Task](r)
		if err != nil {
			return nil, err
		}
		if _, deleting := resource.Terminating(r); !deleting && data.Group == t.group() {
			out = append(out, ctsapi.Task{Name: r.GetId().GetName(), Task: data})
		}
	}
	return out, nil
}

func (t *tasks) group() string {
	if t.files.Group != "" {
		return t.files.Group
	}
	return task.DefaultGroup
}

// Get implements ctsapi.Tasks.
func (t *tasks) Get(ctx context.Context, name string) (ctsapi.Task, error) {
	_, data, err := t.read(ctx, name)
	return ctsapi.Task{Name: name, Task: data}, err
}

func (t *tasks) read(ctx context.Context, name string) (*pb.Resource, *pb.Task, error) {
	resp, err := t.resources.Read(resource.WithConsistency(ctx, resource.Strong), &pb.ReadRequest{Id: task.ID(name)})
	if err != nil {
		return nil, nil, resource.FromStatus(err)
	}
	data, err := resource.Decode[*pb.Task](resp.GetResource())
	return resp.GetResource(), data, err
}

// Create implements ctsapi.Tasks.
func (t *tasks) Create(ctx context.Context, in ctsapi.Task, run ctsapi.Run) (*ctsapi.Plan, error) {
	in.Task.Group = t.group()
	if err := t.daemon.CheckData(in.Task); err != nil {
		return nil, fmt.Errorf("%w task: %w", resource.ErrInvalid, err)
	}
	_, _, err := t.read(ctx, in.Name)
	if err == nil {
		return nil, fmt.Errorf("%w: task with name %s already exists", resource.ErrConflict, in.Name)
	}
	if !errors.Is(err, resource.ErrNotFound) {
		return nil, err
	}
	if run == ctsapi.Inspect {
		return t.plan(ctx, in)
	}
	r := &pb.Resource{Id: task.ID(in.Name), Version: resource.NewVersion}
	if r.Data, err = anypb.New(in.Task); err != nil {
		return nil, err
	}
	if run == ctsapi.None || !in.Task.GetEnabled() {
		_, err = t.resources.Write(ctx, &pb.WriteRequest{Resource: r})
		return nil, resource.FromStatus(err)
	}
	if err := t.request(ctx, r, in.Name); err != nil {
		return nil, errors.Join(err, t.Delete(context.WithoutCancel(ctx), in.Name))
	}
	return nil, nil
}

func (t *tasks) plan(ctx context.Context, in ctsapi.Task) (*ctsapi.Plan, error) {
	result, err := t.daemon.Plan(ctx, in.Name, in.Task)
	c := result.Changes
	return &ctsapi.Plan{ChangesPresent: c.Add+c.Change+c.Destroy > 0, Text: result.Plan}, err
}

// request writes a task with the request of a run, and returns the error of the
// run when it has ended.
func (t *tasks) request(ctx context.Context, r *pb.Resource, name string) error {
	id := resource.NewUID()
	if r.Metadata == nil {
		r.Metadata = map[string]string{}
	}
	r.Metadata[task.RequestKey] = id + " " + string(driver.Apply)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := t.resources.WatchList(ctx, &pb.WatchListRequest{Type: task.RunType, NamePrefix: name + "." + id})
	if err == nil {
		_, err = t.resources.Write(ctx, &pb.WriteRequest{Resource: r})
	}
	for err == nil {
		var ev *pb.WatchEvent
		if ev, err = w.Recv(); err != nil {
			break
		}
		if ev.GetUpsert() == nil {
			continue
		}
		record, err := resource.Decode[*pb.TaskRun](ev.GetUpsert().GetResource())
		switch {
		case err != nil:
			return err
		case record.Result == task.Succeeded:
			return nil
		case record.Result != task.Running:
			return fmt.Errorf("run %s: %s: %s", id, record.Result, record.Error)
		}
	}
	return resource.FromStatus(err)
}

// SetEnabled implements ctsapi.Tasks.
func (t *tasks) SetEnabled(ctx context.Context, name string, enabled bool, run ctsapi.Run) (*ctsapi.Plan, error) {
	r, data, err := t.read(ctx, name)
	if err != nil {
		return nil, err
	}
	if run == ctsapi.Inspect {
		return t.plan(ctx, ctsapi.Task{Name: name, Task: data})
	}
	data.Enabled = &enabled
	next := &pb.Resource{Id: r.Id, Version: r.Version, Metadata: r.Metadata}
	if next.Data, err = anypb.New(data); err != nil {
		return nil, err
	}
	if run == ctsapi.Now && enabled {
		return nil, t.request(ctx, next, name)
	}
	_, err = t.resources.Write(ctx, &pb.WriteRequest{Resource: next})
	return nil, resource.FromStatus(err)
}

// Delete implements ctsapi.Tasks.
func (t *tasks) Delete(ctx context.Context, name string) error {
	r, data, err := t.read(ctx, name)
	if err != nil {
		return err
	}
	data.OnDelete = task.Keep
	next := &pb.Resource{Id: r.Id, Version: r.Version, Metadata: r.Metadata}
	if next.Data, err = anypb.New(data); err == nil {
		_, err = t.resources.Write(ctx, &pb.WriteRequest{Resource: next})
	}
	if err == nil {
		_, err = t.resources.Delete(ctx, &pb.DeleteRequest{Id: task.ID(name)})
	}
	return resource.FromStatus(err)
}

// Runs implements ctsapi.Tasks.
func (t *tasks) Runs(ctx context.Context, name string) ([]ctsapi.TaskRun, error) {
	resp, err := t.resources.List(ctx, &pb.ListRequest{Type: task.RunType, NamePrefix: name + "."})
	if err != nil {
		return nil, resource.FromStatus(err)
	}
	var out []ctsapi.TaskRun
	for _, r := range resp.GetResources() {
		record, err := resource.Decode[*pb.TaskRun](r)
		if err != nil {
			return nil, err
		}
		out = append(out, ctsapi.TaskRun{ID: strings.TrimPrefix(r.GetId().GetName(), name+"."), Run: record})
	}
	slices.SortFunc(out, func(a, b ctsapi.TaskRun) int { return strings.Compare(b.ID, a.ID) })
	return out, nil
}

// Cluster implements ctsapi.Tasks. Every daemon leads the tasks that it has
// claimed, so none of them is the leader of the cluster.
func (t *tasks) Cluster(ctx context.Context) (*ctsapi.Cluster, error) {
	if t.files.Cluster == "" {
		return nil, nil
	}
	resp, err := t.resources.List(ctx, &pb.ListRequest{Type: task.InstanceType})
	if err != nil {
		return nil, resource.FromStatus(err)
	}
	out := &ctsapi.Cluster{Name: t.files.Cluster}
	for _, r := range resp.GetResources() {
		data, err := resource.Decode[*pb.SyncInstance](r)
		if err != nil {
			return nil, err
		}
		if data.Group != t.group() {
			continue
		}
		id := r.GetId().GetName()
		l, err := t.resources.Read(ctx, &pb.ReadRequest{Id: resource.ID(lease.Type, task.InstanceLeaseName(id))})
		out.Members = append(out.Members, ctsapi.Member{
			ID: id, ServiceName: t.files.Consul.Registration.Name, Address: data.Address,
			Healthy: err == nil && lease.Token(l.GetResource()) != 0,
		})
	}
	return out, nil
}
