// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"log/slog"
	"time"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// Settings are the settings of a gateway. SIGHUP changes the settings with the
// tag live in a running gateway.
type Settings struct {
	DC               string   `hcl:"dc,optional" help:"name of this datacenter (required)"`
	Node             string   `hcl:"node,optional" help:"name of this gateway in its datacenter (required)"`
	DataDir          string   `hcl:"data_dir,optional" help:"directory of the last received routes (required)"`
	CAFile           string   `hcl:"ca_file,optional" help:"PEM file with the CA certificates (required without --consul)"`
	CertFile         string   `hcl:"cert_file,optional" help:"PEM file with the certificate of this gateway (required without --consul)"`
	KeyFile          string   `hcl:"key_file,optional" help:"PEM file with the private key of the certificate (required without --consul)"`
	Servers          []string `hcl:"servers,optional" flag:"server" help:"host:port of a server of this datacenter (required without --consul); repeatable"`
	Consul           string   `hcl:"consul,optional" help:"URL of the local Consul agent, for a mesh gateway of Consul, or env for CONSUL_HTTP_ADDR; replaces --server and the certificate files"`
	Protocols        []string `hcl:"server_protocols,optional" flag:"server-protocol" help:"ALPN protocol id that the servers of this datacenter accept; clients that offer none of the listed ids are refused (default: no check); repeatable"`
	LAN              string   `hcl:"lan,optional" help:"ip:port of the listener for servers of this datacenter (required)"`
	WAN              string   `hcl:"wan,optional" help:"host:port that other datacenters dial; also the listen address, unless --wan-bind is given (required)"`
	WANBind          string   `hcl:"wan_bind,optional" help:"ip:port of the listener for other datacenters, for a gateway behind NAT (default: --wan)"`
	AdminAddr        string   `hcl:"admin_addr,optional" help:"loopback host:port of /healthz, /readyz, /routes and /metrics (default: none)"`
	Pprof            bool     `hcl:"pprof,optional" help:"serve profiles of the Go runtime (/debug/pprof) on --admin-addr to every user of this machine, not only to operators"`
	MonitorAddr      string   `hcl:"monitor_addr,optional" help:"host:port or URL of /healthz, /readyz and /metrics, at any address; https:// uses the certificate of this gateway (default: none)"`
	MonitorTokenFile string   `hcl:"monitor_token_file,optional" help:"file (mode 0600) with the bearer token that /metrics of --monitor-addr requires (default: no token)"`
	Listen           []string `hcl:"listen,optional" help:"ip:port of a listener of a standalone gateway, with --routes; repeatable"`
	Routes           string   `hcl:"routes,optional" live:"yes" help:"HCL file with the routes of a standalone gateway"`

	MaxConns            int      `hcl:"max_conns,optional" live:"yes" help:"maximum number of client connections; 0: as many as the limit of open files allows, at most 65536"`
	MaxPerSource        int      `hcl:"max_conns_per_source,optional" live:"yes" help:"maximum number of connections per IPv4 address or IPv6 /64; 0: three quarters of --max-conns, -1: no limit"`
	MaxRatePerSource    int      `hcl:"max_rate_per_source,optional" live:"yes" help:"maximum number of new connections per second and IPv4 address or IPv6 /64, after ten times as many at once; 0: no limit"`
	MaxPerUpstream      int      `hcl:"max_conns_per_upstream,optional" live:"yes" help:"maximum number of connections per upstream address; 0: no limit"`
	LANAllow            []string `hcl:"lan_allow,optional" live:"yes" help:"network (CIDR) that may connect to --lan (default: all); repeatable"`
	LANDeny             []string `hcl:"lan_deny,optional" live:"yes" help:"network (CIDR) that may not connect to --lan, even if it is allowed; repeatable"`
	WANAllow            []string `hcl:"wan_allow,optional" live:"yes" help:"network (CIDR) that may connect to --wan (default: all); repeatable"`
	WANDeny             []string `hcl:"wan_deny,optional" live:"yes" help:"network (CIDR) that may not connect to --wan, even if it is allowed; repeatable"`
	Allow               []string `hcl:"allow,optional" live:"yes" help:"network (CIDR) that may connect to --listen (default: all); repeatable"`
	Deny                []string `hcl:"deny,optional" live:"yes" help:"network (CIDR) that may not connect to --listen, even if it is allowed; repeatable"`
	LANProxyProtocol    []string `hcl:"lan_proxy_protocol,optional" live:"yes" help:"network (CIDR) of load balancers that send a PROXY header, version 2, on connections to --lan; repeatable"`
	WANProxyProtocol    []string `hcl:"wan_proxy_protocol,optional" live:"yes" help:"network (CIDR) of load balancers that send a PROXY header, version 2, on connections to --wan; repeatable"`
	ProxyProtocol       []string `hcl:"proxy_protocol,optional" live:"yes" help:"network (CIDR) of load balancers that send a PROXY header, version 2, on connections to --listen; repeatable"`
	ShutdownDelay       string   `hcl:"shutdown_delay,optional" live:"yes" help:"time in which a stopping gateway still accepts connections"`
	DrainTime           string   `hcl:"drain_time,optional" live:"yes" help:"time that open connections have after --shutdown-delay"`
	HotRestartDrainTime string   `hcl:"hot_restart_drain_time,optional" live:"yes" help:"time that open connections have in the old process after a hot restart"`
	AccessLog           string   `hcl:"access_log,optional" live:"yes" help:"file of the access log, one line of JSON per connection, or stdout or stderr (default: no access log)"`
	AccessLogSample     int      `hcl:"access_log_sample,optional" live:"yes" help:"sampling of the access log: one of this number of connections is logged"`

	Domain    string `hcl:"domain,optional" help:"domain of the names in certificates and SNI (default: wanfed, or consul with --consul)"`
	LogLevel  string `hcl:"log_level,optional" live:"yes" help:"lowest level of log lines: debug, info, warn or error"`
	LogFormat string `hcl:"log_format,optional" help:"format of the log on stderr: text or json"`
}

// DefaultSettings returns the settings with their defaults.
func DefaultSettings() Settings {
	return Settings{
		LogLevel: "info", LogFormat: "text", AccessLogSample: 1, MaxRatePerSource: gateway.DefaultMaxRatePerSource,
		ShutdownDelay: "500ms", DrainTime: "2s", HotRestartDrainTime: "10m",
	}
}

// Names of the listeners of a gateway in settings, logs and metrics.
const (
	listenerLAN        = "lan"
	listenerWAN        = "wan"
	listenerStandalone = "listen"
)

// perSourceFraction is the fraction of max_conns that one source may use by
// default.
const perSourceFraction = 0.75

func (s Settings) standalone() bool { return len(s.Listen) > 0 || s.Routes != "" }

// identity loads the certificate of this gateway and checks the data directory.
func (s Settings) identity(logger *slog.Logger) (*tlsutil.Identity, error) {
	dir := settings.CheckDir("data_dir", s.DataDir)
	id, err := tlsutil.Load(tlsutil.Files{CA: s.CAFile, Cert: s.CertFile, Key: s.KeyFile}, s.domain(), logger)
	if err == nil {
		err = id.VerifySubject(tlsutil.RoleGateway, s.Node, s.DC)
	}
	return id, settings.Join(dir, err)
}

// policy returns the policy of a listener. maxConns is the limit of connections
// of all listeners together.
func (s Settings) policy(listener string, maxConns int) gateway.Policy {
	p := gateway.Policy{MaxPerSource: s.MaxPerSource, MaxRatePerSource: s.MaxRatePerSource}
	if s.MaxPerSource == 0 {
		p.MaxPerSource = max(1, int(perSourceFraction*float64(maxConns)))
	}
	allow, deny, proxy := s.Allow, s.Deny, s.ProxyProtocol
	switch listener {
	case listenerLAN:
		allow, deny, proxy = s.LANAllow, s.LANDeny, s.LANProxyProtocol
	case listenerWAN:
		allow, deny, proxy = s.WANAllow, s.WANDeny, s.WANProxyProtocol
	}
	p.Allow, p.Deny, p.ProxyFrom = settings.Networks(allow), settings.Networks(deny), settings.Networks(proxy)
	return p
}

// accessLogSample returns the sampling for the data plane. -1: no access log.
func (s Settings) accessLogSample() int {
	if s.AccessLog == "" {
		return -1
	}
	return s.AccessLogSample
}

// duration parses a setting that Check accepted.
func duration(s string) time.Duration {
	d, _ := time.ParseDuration(s)
	return d
}
