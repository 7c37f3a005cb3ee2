// SPDX-License-Identifier: MPL-2.0

package config

import (
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/lease"
)

// Remedies for what is not supported.
const (
	noCloud = "Terraform Cloud runs Terraform outside of the daemon: use driver \"terraform\""
	noVault = "let an agent of Vault put the secret into the environment of the daemon, and use {{ env \"NAME\" }}"
)

// top reads the top level of a file.
func (l *loader) top(b *block) {
	c := l.cfg
	l.logLevel(b)
	b.string("id", &c.ID)
	b.string("working_dir", &c.WorkingDir)
	b.int("port", &c.Port, math.MaxUint16)
	b.string("group", &c.Group)
	b.int("max_running", &c.MaxRunning, math.MaxInt32)
	b.string("state_key_file", &c.StateKeyFile)
	b.refuse("license", "wanfed needs no licence: remove the block")
	b.refuse("license_path", "wanfed needs no licence: remove the argument")
	b.refuse("provider", "the name of the block is terraform_provider")
	b.ignore("vault", "secrets of Vault are not supported; "+noVault)
	b.ignore("client_type", "it is a setting for tests of CTS")

	b.ignore("syslog", "the log goes to stderr, which a service manager can copy to syslog")
	l.nested(b, "syslog", func(s *block) {
		s.optional("enabled", &l.syslog)
		s.string("facility", &c.Syslog.Facility)
		s.string("name", &c.Syslog.Name)
	})
	l.nested(b, "buffer_period", func(s *block) {
		if l.buffer == nil {
			l.buffer = &pb.TaskBuffer{}
		}
		readBuffer(s, l.buffer)
	})
	l.nested(b, "tls", func(s *block) {
		s.optional("enabled", &l.apiTLS)
		s.string("cert", &c.TLS.Cert)
		s.string("key", &c.TLS.Key)
		s.bool("verify_incoming", &c.TLS.VerifyIncoming)
		s.string("ca_cert", &c.TLS.CACert)
		s.string("ca_path", &c.TLS.CAPath)
	})
	l.nested(b, "wanfed", func(s *block) {
		s.strings("address", &c.Wanfed.Addresses)
		s.string("ca", &c.Wanfed.CA)
		s.string("cert", &c.Wanfed.Cert)
		s.string("key", &c.Wanfed.Key)
		var source string
		s.string("source", &source)
		switch source {
		case "":
		case "wanfed", "consul":
			c.Wanfed.FromConsul = source == "consul"
		default:
			s.fail(s.at("source"), "source", "%q: must be wanfed or consul", source)
		}
	})
	l.nested(b, "consul", l.consul)
	l.nested(b, "high_availability", l.highAvailability)
	l.driver(b)
	b.labeled("terraform_provider", l.provider)
	for _, v := range b.all("service") {
		b.body("service", v, l.service)
	}
	for _, v := range b.all("task") {
		b.body("task", v, l.task)
	}
}

// nested reads a block at the top level.
func (l *loader) nested(b *block, name string, read func(*block)) {
	b.nested(name, func(sub *block) {
		l.blocks[name] = sub
		read(sub)
	})
}

// levels has the log levels of CTS.
var levels = map[string]slog.Level{"TRACE": slog.LevelDebug, "DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo,
	"WARN": slog.LevelWarn, "ERR": slog.LevelError, "ERROR": slog.LevelError}

func (l *loader) logLevel(b *block) {
	var name string
	if b.string("log_level", &name); name == "" {
		return
	}
	level, ok := levels[strings.ToUpper(name)]
	if !ok {
		b.fail(b.at("log_level"), "log_level", "%q: must be TRACE, DEBUG, INFO, WARN or ERR", name)
	}
	l.cfg.LogLevel = level
}

func (l *loader) consul(b *block) {
	c := &l.cfg.Consul
	b.string("address", &c.Address)
	b.string("token", &c.Token)
	b.string("kv_path", &c.KVPath)
	b.ignore("kv_namespace", "wanfed has one namespace")
	b.ignore("transport", "its limits and timeouts are fixed")
	b.nested("auth", func(a *block) {
		on := true
		a.bool("enabled", &on)
		var username, password string
		a.string("username", &username)
		a.string("password", &password)
		if on {
			c.Username, c.Password = username, password
		}
	})
	b.nested("tls", func(t *block) {
		t.optional("enabled", &l.consulTLS)
		t.bool("verify", &c.TLS.Verify)
		t.string("ca_cert", &c.TLS.CACert)
		t.string("ca_path", &c.TLS.CAPath)
		t.string("cert", &c.TLS.Cert)
		t.string("key", &c.TLS.Key)
		t.string("server_name", &c.TLS.ServerName)
	})
	b.nested("service_registration", func(s *block) {
		r := &c.Registration
		s.bool("enabled", &r.Enabled)
		s.string("service_name", &r.Name)
		s.string("address", &r.Address)
		s.ignore("namespace", "namespaces are not supported")
		s.nested("default_check", func(d *block) {
			d.bool("enabled", &r.Check)
			d.ignore("address", "the check has a TTL, which the daemon renews")
			var a string
			if d.string("address", &a); a != "" && !strings.HasPrefix(a, "http://") && !strings.HasPrefix(a, "https://") {
				d.fail(d.at("address"), "address", "%q: must begin with http:// or https://", a)
			}
		})
	})
}

func (l *loader) highAvailability(b *block) {
	c := l.cfg
	b.nested("cluster", func(s *block) {
		s.string("name", &c.Cluster)
		s.labeled("storage", func(label string, storage *block) {
			if label != "consul" {
				storage.fail(storage.pos, "", `the storage must be "consul"`)
			}
			storage.ignore("parent_path", "wanfed stores tasks as resources")
			storage.ignore("namespace", "wanfed stores tasks as resources")
			storage.duration("session_ttl", &c.Lease)
			if c.Lease != 0 && (c.Lease < lease.MinDuration || c.Lease > task.MaxLease) {
				storage.fail(storage.at("session_ttl"), "session_ttl", "%v: must be %v to %v", c.Lease, lease.MinDuration,
					task.MaxLease)
			}
		})
		if task.CheckName(c.Cluster) != nil {
			s.fail(s.at("name"), "name", "%q: the name of a cluster is required, and has the rules of a task name", c.Cluster)
		}
	})
	b.nested("instance", func(s *block) { s.string("address", &c.Address) })
	if len(b.all("cluster")) == 0 {
		b.fail(b.pos, "cluster", "the block cluster is required")
	}
}

// backends has the backends of Terraform that have locks and workspaces.
var backends = []string{"azurerm", "consul", "cos", "gcs", "kubernetes", "local", "manta", "pg", "s3"}

func (l *loader) driver(b *block) {
	found := 0
	b.labeled("driver", func(label string, d *block) {
		if found++; found > 1 {
			d.fail(d.pos, "", "only one driver block per file")
		}
		switch label {
		case "terraform":
			l.terraform(d)
			return
		case "terraform-cloud":
			d.fail(d.pos, "", "is not supported: %s", noCloud)
		default:
			d.fail(d.pos, "", "unknown driver: must be terraform")
		}
		d.knowAll() // the rules of the arguments are unknown
	})
}

func (l *loader) terraform(b *block) {
	t := &l.cfg.Terraform
	b.string("path", &t.Path)
	b.bool("log", &t.Log)
	b.bool("persist_log", &t.PersistLog)
	b.ignore("log", "wanfed task log prints the output of a run")
	b.ignore("persist_log", "Terraform writes its own log if TF_LOG and TF_LOG_PATH are in the environment of the daemon")
	b.ignore("version", "the daemon uses the program in path, of any version from 0.13 on, and downloads none")
	if b.string("version", &t.Version); t.Version != "" {
		checkVersion(b, t.Version)
	}
	b.labeled("backend", func(label string, s *block) {
		l.blocks["backend"] = s
		if !slices.Contains(backends, label) {
			s.fail(s.pos, "", "unsupported backend: must be one of %s; without a block, wanfed stores the states",
				strings.Join(backends, ", "))
		}
		s.knowAll()
		body, err := items(s.name, s.members, plainText)
		l.errs = appendError(l.errs, err)
		t.Backend = &driver.Backend{Type: label, Body: body}
	})
	b.nested("required_providers", func(s *block) {
		for _, m := range s.members {
			s.nested(m.name, func(p *block) {
				var r driver.RequiredProvider
				p.string("source", &r.Source)
				p.string("version", &r.Version)
				if t.Required == nil {
					t.Required = make(map[string]driver.RequiredProvider)
				}
				t.Required[m.name] = r
			})
		}
	})
}

var exactVersion = regexp.MustCompile(`^([0-9]+)\.([0-9]+)\.[0-9]+$`)

// checkVersion checks a version of Terraform.
func checkVersion(b *block, version string) {
	parts := exactVersion.FindStringSubmatch(version)
	if parts == nil {
		b.fail(b.at("version"), "version", "%q: must be an exact version, such as 1.5.7", version)
		return
	}
	minor, err := strconv.Atoi(parts[2])
	if strings.Trim(parts[1], "0") == "" && (err != nil || minor < 13) {
		b.fail(b.at("version"), "version", "%q: must be at least 0.13.0", version)
	}
}

// readBuffer reads a block buffer_period into buffer.
func readBuffer(b *block, buffer *pb.TaskBuffer) {
	on := true
	b.bool("enabled", &on)
	buffer.Disabled = !on
	b.durationProto("min", &buffer.Min)
	b.durationProto("max", &buffer.Max)
	if low, high := buffer.Min, buffer.Max; low != nil && high != nil && low.AsDuration() > high.AsDuration() {
		b.warn(b.at("min"), "min", "%v is above max, %v: max is raised to min", low.AsDuration(), high.AsDuration())
	}
}

// bufferOf returns buffer with the defaults of parent and of package task.
func bufferOf(buffer, parent *pb.TaskBuffer) *pb.TaskBuffer {
	if buffer == nil {
		return parent
	}
	out := &pb.TaskBuffer{Disabled: buffer.Disabled, Min: buffer.Min, Max: buffer.Max}
	if out.Disabled {
		return &pb.TaskBuffer{Disabled: true}
	}
	if out.Min == nil {
		out.Min = parent.Min
		if out.Max == nil {
			out.Max = parent.Max
		}
	}
	task.SetDefaults(&pb.Task{Buffer: out})
	return out
}
