// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"crypto/rand"
	"path/filepath"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/wanfed/wanfed/enroll"
	"github.com/wanfed/wanfed/server"
	"github.com/wanfed/wanfed/tlsutil"
)

// member describes the datacenter of a machine.
type member struct {
	dc, domain      string
	primary         string
	primaryGateways []string
	servers         []string // host:port of the servers that exist; empty: the first server
	encrypted       bool     // gossip
}

// attributes builds a file of settings. Empty values are omitted.
type attributes struct{ file *hclwrite.File }

func newAttributes() attributes { return attributes{hclwrite.NewEmptyFile()} }

func (a attributes) text(name, value string) {
	if value != "" {
		a.file.Body().SetAttributeValue(name, cty.StringVal(value))
	}
}

func (a attributes) list(name string, values []string) {
	if len(values) == 0 {
		return
	}
	var list []cty.Value
	for _, v := range values {
		list = append(list, cty.StringVal(v))
	}
	a.file.Body().SetAttributeValue(name, cty.ListVal(list))
}

func (a attributes) number(name string, value, def int) {
	if value != def {
		a.file.Body().SetAttributeValue(name, cty.NumberIntVal(int64(value)))
	}
}

func (a attributes) bytes() []byte { return hclwrite.Format(a.file.Bytes()) }

// identity adds the settings that servers and gateways have in common.
func (a attributes) identity(l layout, m member, role tlsutil.Role, node, data string) {
	f := l.cert(role)
	a.text("dc", m.dc)
	a.text("node", node)
	if m.domain != tlsutil.DefaultDomain {
		a.text("domain", m.domain)
	}
	a.text("data_dir", data)
	a.text("ca_file", f.CA)
	a.text("cert_file", f.Cert)
	a.text("key_file", f.Key)
}

// serverSettings returns the settings of a server.
func serverSettings(l layout, m member, a addresses, node string) []byte {
	s := newAttributes()
	s.identity(l, m, tlsutil.RoleServer, node, l.serverData())
	s.text("advertise", a.lan)
	if w := a.wildcard(); w != server.DefaultBind {
		s.text("bind", w)
	}
	s.number("port", a.serverPort, server.DefaultPort)
	if a.http() != server.DefaultHTTPAddr {
		s.text("http_addr", a.http())
	}
	if m.primary != m.dc {
		s.text("primary_datacenter", m.primary)
		s.list("primary_gateways", m.primaryGateways)
	}
	s.list("retry_join", m.servers)
	if m.encrypted {
		s.text("encrypt_file", l.gossipKey())
	}
	if len(m.servers) == 0 { // the machine with the CA
		s.text("issuing_key_passphrase_file", l.passphrase())
	}
	if a.certLife != enroll.DefaultLife && a.certLife != 0 {
		s.text("cert_life", a.certLife.String())
	}
	return s.bytes()
}

// gatewaySettings returns the settings of a gateway. admin is its admin address,
// or empty.
func gatewaySettings(l layout, m member, a addresses, node, admin string) []byte {
	s := newAttributes()
	s.identity(l, m, tlsutil.RoleGateway, node, filepath.Join(l.data, "gateway"))
	if len(m.servers) == 0 {
		m.servers = []string{a.server()}
	}
	s.list("servers", m.servers)
	s.text("lan", a.gatewayLAN())
	s.text("wan", a.wan)
	if bind := a.wanBind(); bind != a.wan {
		s.text("wan_bind", bind)
	}
	s.text("admin_addr", admin)
	return s.bytes()
}

// addPair adds a certificate and its key.
func (f newFiles) addPair(to tlsutil.Files, p tlsutil.KeyPair) { f[to.Cert], f[to.Key] = p.Cert, p.Key }

// caFiles returns the paths of the CA of the datacenter of a server.
func (l layout) dcCA() tlsutil.Files {
	return tlsutil.Files{
		Cert: filepath.Join(l.caDir(), enroll.DatacenterCert), Key: filepath.Join(l.caDir(), enroll.DatacenterKey),
	}
}

// addCA adds the certificate of a CA and its key, which is encrypted with a new
// passphrase in the directory of the settings. Backups of the data directory do
// not have the passphrase.
func (f newFiles) addCA(l layout, to tlsutil.Files, p tlsutil.KeyPair) error {
	if f[l.passphrase()] == nil {
		f[l.passphrase()] = []byte(rand.Text() + "\n") // 26 characters, 128 bits
	}
	key, err := tlsutil.EncryptKey(p.Key, bytes.TrimSpace(f[l.passphrase()]))
	if err != nil {
		return err
	}
	f.addPair(to, tlsutil.KeyPair{Cert: p.Cert, Key: key})
	return nil
}

// addFirst adds the files of the first machine of a datacenter, which has a
// server and a gateway. ca is the CA of the datacenter, and root the CA of all.
func (f newFiles) addFirst(l layout, m member, a addresses, ca tlsutil.KeyPair, roots []byte) error {
	const srv, gw = "srv1", "gw1"
	for _, c := range []struct {
		role tlsutil.Role
		node string
	}{{tlsutil.RoleServer, srv}, {tlsutil.RoleGateway, gw}, {tlsutil.RoleOperator, ""}} {
		r := enroll.CertRequest(tlsutil.Peer{Role: c.role, DC: m.dc, Node: c.node}, m.domain, a.certLife)
		r.CA = ca
		p, err := tlsutil.CreateCert(r)
		if err != nil {
			return err
		}
		f.addPair(l.cert(c.role), p)
	}
	if err := f.addCA(l, l.dcCA(), ca); err != nil {
		return err
	}
	f[l.caFile()] = roots
	f[l.serverHCL()] = serverSettings(l, m, a, srv)
	f[l.gatewayHCL()] = gatewaySettings(l, m, a, gw, "")
	return nil
}
