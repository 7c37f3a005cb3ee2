// SPDX-License-Identifier: MPL-2.0

package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/consul"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/automation/terraform"
	"github.com/wanfed/wanfed/internal/settings"
)

// Config is the configuration of a sync daemon.
type Config struct {
	LogLevel slog.Level
	// ID identifies the daemon. Default: cts-HOSTNAME.
	ID string
	// WorkingDir is the parent of the directories of the tasks. Default:
	// sync-tasks.
	WorkingDir string
	// Port of the HTTP API. Default: 8558.
	Port int
	// Group is the group of the daemon. Default: the name of the cluster in
	// the block high_availability, or task.DefaultGroup.
	Group string
	// Cluster is the name of the cluster in the block high_availability.
	// Empty: the block is absent.
	Cluster string
	// Lease is the duration of the leases on tasks. 0: the default of the
	// daemon.
	Lease time.Duration
	// Address is the address that other daemons report for this one.
	Address string
	// MaxRunning is the number of concurrent runs. 0: the default of the
	// daemon.
	MaxRunning int
	// StateKeyFile has the keys that encrypt the states. Empty: none.
	StateKeyFile string
	// Buffer is the buffer of tasks without one. Never nil.
	Buffer    *pb.TaskBuffer
	Syslog    Syslog
	TLS       TLS
	Wanfed    Wanfed
	Consul    Consul
	Terraform Terraform
	Providers []ProviderBlock
	Tasks     []Task
	// Warnings has one line for each deprecated or suspicious setting.
	Warnings []string

	tasks []*taskBlock
}

// Syslog configures the copy of the log in syslog.
type Syslog struct {
	Enabled        bool
	Facility, Name string
}

// TLS configures the HTTP API. The fields are paths of PEM files.
type TLS struct {
	Enabled   bool
	Cert, Key string
	// VerifyIncoming requires certificates of clients, from CACert or, if it is
	// empty, the files in CAPath.
	VerifyIncoming bool
	CACert, CAPath string
}

// Wanfed has the addresses of the servers of wanfed, and the paths of the files
// of the daemon's certificate.
type Wanfed struct {
	Addresses     []string
	CA, Cert, Key string
	// FromConsul reports that catalog and keys come from an agent of Consul
	// (source = "consul"). Tasks are stored at the servers of wanfed. Otherwise
	// everything comes from these servers.
	FromConsul bool
}

// Consul configures the connection to an agent of Consul, or to the HTTP API of a
// server of wanfed.
type Consul struct {
	// Address is HOST:PORT, or a URL. Several, separated by commas, are servers of
	// one datacenter. Default: localhost:8500.
	Address string
	// Token, Username and Password are secrets. Empty: none.
	Token, Username, Password string
	TLS                       ConsulTLS
	// KVPath is the prefix of CTS's keys. Default: consul-terraform-sync/.
	KVPath       string
	Registration Registration
}

// ConsulTLS configures TLS to an agent of Consul.
type ConsulTLS struct {
	Enabled bool
	// Verify is false if the certificate of the agent is not verified.
	Verify                                bool
	CACert, CAPath, Cert, Key, ServerName string
}

// Registration configures the service that the daemon registers in Consul.
type Registration struct {
	Enabled bool
	Name    string
	Address string
	// Check reports whether the service has a health check.
	Check bool
}

// Terraform configures the driver terraform.
type Terraform struct {
	// Path is the directory of the program. Empty: PATH is searched.
	Path string
	// Version is the exact version that the program must have. Empty: any.
	Version string
	// Log copies the output of Terraform to the log. PersistLog writes its
	// trace log to the directory of the task.
	Log, PersistLog bool
	// Backend stores the states. Nil: the files name none.
	Backend *driver.Backend
	// Required has the required providers, by name.
	Required map[string]driver.RequiredProvider
}

// Task is a task of the files. It has the values of task.SetDefaults, and
// task.Check has accepted it.
type Task struct {
	Name string
	Task *pb.Task
	// Pos is FILE:LINE.
	Pos string
}

// loader reads files into cfg.
type loader struct {
	cfg      *Config
	getenv   func(string) string
	errs     []error
	blocks   map[string]*block // last block at the top level, by name
	services []service
	buffer   *pb.TaskBuffer
	// The argument enabled of blocks in which each option implies it. Nil: absent.
	syslog, apiTLS, consulTLS *bool
}

func newLoader(getenv func(string) string) *loader {
	return &loader{cfg: &Config{Port: 8558, WorkingDir: "sync-tasks", Consul: defaultConsul}, getenv: getenv,
		blocks: make(map[string]*block)}
}

// Load reads files, and the files *.hcl and *.json of directories. getenv
// returns the value of an environment variable. The error combines one *Error
// for each error in a file.
func Load(paths []string, getenv func(string) string) (*Config, error) {
	l := newLoader(getenv)
	for _, path := range paths {
		files, err := filesOf(path)
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		for _, file := range files {
			src, err := settings.ReadFile(file, settings.MaxFile)
			if err != nil {
				return nil, fmt.Errorf("read configuration: %w", err)
			}
			l.read(file, src)
		}
	}
	if len(l.errs) == 0 {
		l.finish()
	}
	if err := settings.Join(l.errs...); err != nil {
		return nil, err
	}
	return l.cfg, nil
}

// Detect reports whether the content of a file belongs to a sync daemon: it has a
// block that only such files have.
func Detect(path string, src []byte) bool {
	o, err := parse(path, src)
	return err == nil && slices.ContainsFunc(o, func(m member) bool {
		return slices.Contains([]string{"task", "wanfed", "driver", "terraform_provider", "buffer_period"}, m.name)
	})
}

// filesOf returns the configuration files of a directory, or path itself.
func filesOf(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		if info, statErr := os.Stat(path); statErr != nil || !info.IsDir() {
			return []string{path}, nil // ReadFile reports the error
		}
		return nil, err
	}
	var files []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.Type()&fs.ModeDir == 0 && (ext == ".hcl" || ext == ".json") {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

// read reads the content of a file.
func (l *loader) read(file string, src []byte) {
	o, err := parse(file, src)
	if err != nil {
		l.errs = append(l.errs, err)
		return
	}
	b := l.block("", pos{file, 0}, o)
	l.top(b)
	b.done()
}

// finish sets defaults, and checks what depends on several blocks.
func (l *loader) finish() {
	c := l.cfg
	if c.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			l.errs = append(l.errs, fmt.Errorf("id: read the host name for the default: %w: set id", err))
		}
		c.ID = "cts-" + host
	}
	c.Group = cmp.Or(c.Group, c.Cluster, task.DefaultGroup)
	c.Buffer = bufferOf(l.buffer, &pb.TaskBuffer{Min: durationpb.New(5 * time.Second), Max: durationpb.New(20 * time.Second)})
	c.Syslog.Enabled = enabled(l.syslog, c.Syslog != Syslog{})
	c.Syslog.Facility = cmp.Or(c.Syslog.Facility, "LOCAL0")
	c.Syslog.Name = cmp.Or(c.Syslog.Name, "consul-terraform-sync")
	l.finishConsul()
	l.finishTLS()
	l.finishBackend()
	l.finishTasks()
}

func (l *loader) finishTLS() {
	t := &l.cfg.TLS
	t.Enabled = enabled(l.apiTLS, *t != TLS{})
	b := l.blocks["tls"]
	switch {
	case !t.Enabled:
	case t.Cert == "" || t.Key == "":
		b.fail(b.pos, cmp.Or(missing("cert", t.Cert), missing("key", t.Key)), "TLS of the API needs cert and key")
	case t.VerifyIncoming && t.CACert == "" && t.CAPath == "":
		b.fail(b.at("verify_incoming"), "verify_incoming", "needs ca_cert or ca_path")
	}
}

// enabled returns the argument enabled, or implied if it is absent.
func enabled(explicit *bool, implied bool) bool {
	if explicit != nil {
		return *explicit
	}
	return implied
}

// missing returns name if value is empty.
func missing(name, value string) string {
	if value == "" {
		return name
	}
	return ""
}

var defaultConsul = Consul{
	KVPath: "consul-terraform-sync/", TLS: ConsulTLS{Verify: true},
	Registration: Registration{Enabled: true, Name: "consul-terraform-sync", Check: true},
}

// finishConsul sets what the files do not have from the environment.
func (l *loader) finishConsul() {
	c := &l.cfg.Consul
	env := func(to *string, names ...string) {
		for _, name := range names {
			*to = cmp.Or(*to, l.getenv(name))
		}
	}
	env(&c.Address, "CONSUL_HTTP_ADDR")
	c.Address = cmp.Or(c.Address, "localhost:8500")
	env(&c.Token, "CONSUL_TOKEN", "CONSUL_HTTP_TOKEN")
	t := &c.TLS
	env(&t.CACert, "CONSUL_CACERT")
	env(&t.CAPath, "CONSUL_CAPATH")
	env(&t.Cert, "CONSUL_CLIENT_CERT")
	env(&t.Key, "CONSUL_CLIENT_KEY")
	env(&t.ServerName, "CONSUL_TLS_SERVER_NAME")
	t.Enabled = enabled(l.consulTLS, *t != defaultConsul.TLS)
	l.finishSource()
}

// finishSource checks what depends on the source of data.
func (l *loader) finishSource() {
	c, b := l.cfg, l.blocks["consul"]
	if !c.Wanfed.FromConsul {
		for _, name := range []string{"token", "auth"} {
			if b != nil && len(b.all(name)) > 0 {
				b.warn(b.at(name), name, "only Terraform's backend consul uses it, because the source of data is wanfed")
			}
		}
		if t := c.Consul.TLS; b != nil && (t.CACert != "" || t.CAPath != "" || t.Cert != "" || t.Key != "") {
			b.warn(b.at("tls"), "tls", "only Terraform's backend consul uses its files, because the source of data is wanfed")
		}
		return
	}
	if w := l.blocks["wanfed"]; len(c.Wanfed.Addresses) == 0 {
		w.fail(w.at("source"), "address", "source \"consul\" needs the server ports of wanfed, which store the tasks and their states: "+
			"address = [\"HOST:8300\"]")
	}
	if !c.Consul.TLS.Verify {
		b.warn(b.at("tls"), "tls", "verify is false: the certificate of the agent is not verified")
	}
}

// ConsulAgent returns the connection to the agent of Consul.
func (c *Config) ConsulAgent() consul.Config {
	t := c.Consul.TLS
	file := func(name, path string) consul.File { return consul.File{Path: path, Setting: "consul.tls." + name} }
	return consul.Config{
		Addr: c.Consul.Address, TLS: t.Enabled, Token: c.Consul.Token, Username: c.Consul.Username, Password: c.Consul.Password,
		CA: file("ca_cert", t.CACert), CADir: file("ca_path", t.CAPath), Cert: file("cert", t.Cert), Key: file("key", t.Key),
		ServerName: t.ServerName, SkipVerify: !t.Verify,
	}
}

// finishBackend adds the defaults of the backend consul, and checks the backend
// for several daemons.
func (l *loader) finishBackend() {
	c := l.cfg
	backend := c.Terraform.Backend
	if backend == nil {
		return
	}
	if b := l.blocks["backend"]; backend.Type == "local" && c.Cluster != "" {
		b.warn(b.pos, "", "the other daemons of the cluster do not have the states of this backend: remove the block")
	}
	if backend.Type != "consul" {
		return
	}
	add := func(name string, value any) {
		has := func(i driver.Item) bool { return i.Name == name }
		if text, ok := value.(string); ok && text == "" || slices.ContainsFunc(backend.Body, has) {
			return
		}
		raw, err := json.Marshal(value)
		l.errs = appendError(l.errs, err)
		backend.Body = append(backend.Body, driver.Item{Name: name, Value: raw})
	}
	address, _, _ := strings.Cut(c.Consul.Address, ",") // Terraform accepts only one
	add("address", address)
	add("path", path.Join(c.Consul.KVPath, "terraform"))
	add("gzip", true)
	if c.Consul.TLS.Enabled {
		add("scheme", "https")
		add("ca_file", c.Consul.TLS.CACert)
		add("cert_file", c.Consul.TLS.Cert)
		add("key_file", c.Consul.TLS.Key)
	}
	backend.Env = make(map[string]string)
	if c.Consul.Token != "" {
		backend.Env["CONSUL_HTTP_TOKEN"] = c.Consul.Token
	}
	if c.Consul.Username != "" {
		backend.Env["CONSUL_HTTP_AUTH"] = c.Consul.Username + ":" + c.Consul.Password
	}
}

func appendError(errs []error, err error) []error {
	if err != nil {
		return append(errs, err)
	}
	return errs
}

// CheckModules checks the local modules of the tasks.
func (c *Config) CheckModules() error {
	var errs []error
	for _, t := range c.tasks {
		err := terraform.CheckModule(t.label, t.task)
		if f, ok := errors.AsType[*task.FieldError](err); ok {
			err = t.locate(f)
		}
		errs = append(errs, err)
	}
	return settings.Join(errs...)
}
