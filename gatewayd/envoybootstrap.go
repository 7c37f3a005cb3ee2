// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/wanfed/wanfed/tlsutil"
)

// Bootstrap returns the bootstrap of Envoy, as JSON. Envoy then connects to one
// of the servers with the certificate of the gateway and receives its
// configuration. The paths of the certificate files become absolute.
func (s EnvoySettings) Bootstrap() ([]byte, error) {
	var files [3]string
	for i, name := range []string{s.CAFile, s.CertFile, s.KeyFile} {
		var err error
		if files[i], err = filepath.Abs(name); err != nil {
			return nil, err
		}
	}
	type object = map[string]any
	type list = []any
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
	file := func(path string) object { return object{"filename": path} }
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
					"tls_certificates": list{object{"certificate_chain": file(files[1]), "private_key": file(files[2])}},
					"validation_context": object{
						"trusted_ca": file(files[0]),
						"match_typed_subject_alt_names": list{
							object{"san_type": "DNS", "matcher": object{"exact": name}},
						},
					},
				},
			},
		},
	}
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(object{
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
	return b.Bytes(), err
}

// serversCluster is the name of the cluster of the servers that send Envoy its
// configuration. No SNI has this name, because it has an underscore.
const serversCluster = "wanfed_servers"
