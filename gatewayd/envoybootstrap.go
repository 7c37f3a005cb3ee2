// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/tlsutil"
)

// JSON values.
type (
	object = map[string]any
	list   = []any
)

// Bootstrap returns the bootstrap of Envoy, as JSON. Envoy then connects to one
// of the servers with the certificate of the gateway and receives its
// configuration. Bootstrap writes files to DataDir that have the absolute paths
// of the certificate files. Envoy reads the certificate files again when a file
// is renamed into their directories.
func (s EnvoySettings) Bootstrap() ([]byte, error) {
	if err := s.writeSecrets(false); err != nil {
		return nil, err
	}
	return s.bootstrap()
}

// secretsDir is the directory in the data directory with one file for each
// secret.
const secretsDir = "secrets"

// Names of secrets.
const (
	certSecret = "certificate"
	caSecret   = "ca"
)

// writeSecrets writes the files that have the paths of the certificate files.
// With onWrite, Envoy reads the certificate files after each call. Otherwise it
// does so when a file is renamed into their directories.
func (s EnvoySettings) writeSecrets(onWrite bool) error {
	dir, err := filepath.Abs(filepath.Join(s.DataDir, secretsDir))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create data_dir: %w; set --data-dir to a directory that this user may write", err)
	}
	source := func(path string) object {
		path, absErr := filepath.Abs(path)
		if absErr != nil {
			err = absErr
		}
		return object{"filename": path}
	}
	cert := object{"certificate_chain": source(s.CertFile), "private_key": source(s.KeyFile)}
	ca := object{"trusted_ca": source(s.CAFile)}
	if err != nil {
		return err
	}
	if onWrite {
		watched := object{"path": dir}
		cert["watched_directory"], ca["watched_directory"] = watched, watched
	}
	for name, secret := range map[string]object{
		certSecret: {"tls_certificate": cert}, caSecret: {"validation_context": ca},
	} {
		secret["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
		secret["name"] = name
		b, err := indented(object{"resources": list{secret}})
		if err != nil {
			return err
		}
		if err := atomicfile.WriteFile(secretPath(dir, name), b, 0o600); err != nil {
			return fmt.Errorf("write the paths of certificate files for Envoy: %w", err)
		}
	}
	return nil
}

func secretPath(dir, name string) string { return filepath.Join(dir, name+".json") }

// indented returns v as JSON.
func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

// bootstrap is Bootstrap without files.
func (s EnvoySettings) bootstrap() ([]byte, error) {
	dir, err := filepath.Abs(filepath.Join(s.DataDir, secretsDir))
	if err != nil {
		return nil, err
	}
	secret := func(name string) object {
		return object{"name": name, "sds_config": object{
			"path_config_source": object{"path": secretPath(dir, name)}, "resource_api_version": "V3",
		}}
	}
	address := func(addr string) object {
		host, port, _ := net.SplitHostPort(addr) // Check has accepted it
		n, _ := strconv.Atoi(port)
		return object{"socket_address": object{"address": host, "port_value": n}}
	}
	var endpoints list
	discovery := "STATIC"
	for _, addr := range s.Servers {
		if _, err := netip.ParseAddrPort(addr); err != nil {
			discovery = "STRICT_DNS"
		}
		endpoints = append(endpoints, object{"endpoint": object{"address": address(addr)}})
	}
	name := tlsutil.ServerName("", s.DC, s.Domain)
	servers := object{
		"name": serversCluster, "type": discovery, "connect_timeout": "2s",
		"load_assignment": object{"cluster_name": serversCluster, "endpoints": list{object{"lb_endpoints": endpoints}}},
		"typed_extension_protocol_options": object{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": object{
				"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
				"explicit_http_config": object{"http2_protocol_options": object{
					"connection_keepalive": object{"interval": "15s", "timeout": "5s"},
				}},
			},
		},
		"transport_socket": object{
			"name": "envoy.transport_sockets.tls",
			"typed_config": object{
				"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
				"sni":   name,
				"common_tls_context": object{
					"alpn_protocols": list{"h2"},
					"tls_params": object{
						"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3",
					},
					"tls_certificate_sds_secret_configs": list{secret(certSecret)},
					"combined_validation_context": object{
						"default_validation_context": object{"match_typed_subject_alt_names": list{
							object{"san_type": "DNS", "matcher": object{"exact": name}},
						}},
						"validation_context_sds_secret_config": secret(caSecret),
					},
				},
			},
		},
	}
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	return indented(object{
		"node":  object{"id": s.Node, "cluster": s.DC, "metadata": object{"wan_bind": s.WANBind}},
		"admin": object{"address": address(s.AdminAddr)},
		"dynamic_resources": object{
			"cds_config": ads, "lds_config": ads,
			"ads_config": object{
				"api_type": "DELTA_GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
				"grpc_services": list{object{"envoy_grpc": object{
					"cluster_name": serversCluster,
					"retry_policy": object{"retry_back_off": object{"base_interval": "0.1s", "max_interval": "1s"}},
				}}},
			},
		},
		"static_resources": object{"clusters": list{servers}},
		"layered_runtime": object{"layers": list{object{
			"name": "wanfed", "static_layer": object{"wanfed": object{"access_log": s.AccessLog}},
		}}},
		"overload_manager": object{"resource_monitors": list{object{
			"name": "envoy.resource_monitors.global_downstream_max_connections",
			"typed_config": object{
				"@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3" +
					".DownstreamConnectionsConfig",
				"max_active_downstream_connections": s.MaxConns,
			},
		}}},
	})
}

// serversCluster is the name of the cluster of the servers that send Envoy its
// configuration. No SNI has this name, because it has an underscore.
const serversCluster = "wanfed_servers"
