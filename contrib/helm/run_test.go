// SPDX-License-Identifier: MPL-2.0

package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	encoding "encoding/pem"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
)

// authority has the CAs of a federation, which "wanfed tls ca create" made.
type authority struct{ dir, ca string }

func newAuthority(t testing.TB, datacenters ...string) authority {
	t.Helper()
	a := authority{dir: t.TempDir()}
	a.ca = filepath.Join(a.dir, "wanfed-agent-ca.pem")
	a.run(t, "tls", "ca", "create")
	for _, dc := range datacenters {
		a.run(t, "tls", "ca", "create", "--dc", dc)
	}
	return a
}

func (a authority) run(t testing.TB, args ...string) {
	t.Helper()
	cmd := exec.Command(tools(t).wanfed, args...)
	cmd.Dir = a.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("wanfed %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (a authority) read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(a.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// text returns the CA of the federation as a value of the chart.
func (a authority) text(t testing.TB) string {
	t.Helper()
	text, err := json.Marshal(string(a.read(t, "wanfed-agent-ca.pem")))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// issue returns the Secret of a Certificate, which the code of cert-manager signs
// with the CA of the datacenter.
func (a authority) issue(t testing.TB, dc string, c *certmanager.Certificate) map[string][]byte {
	t.Helper()
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("certificate %s: %v", c.Name, err)
		}
	}
	cas, err := pki.DecodeX509CertificateChainBytes(a.read(t, dc+"-wanfed-ca.pem"))
	fatal(err)
	caKey, err := pki.DecodePrivateKeyBytes(a.read(t, dc+"-wanfed-ca-key.pem"))
	fatal(err)
	key, err := pki.GeneratePrivateKeyForCertificate(c)
	fatal(err)
	csr, err := pki.GenerateCSR(c)
	fatal(err)
	der, err := pki.EncodeCSR(csr, key)
	fatal(err)
	template, err := pki.CertificateTemplateFromCertificateRequest(&certmanager.CertificateRequest{
		Spec: certmanager.CertificateRequestSpec{
			Request:  encoding.EncodeToMemory(&encoding.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			Duration: c.Spec.Duration, Usages: c.Spec.Usages, IsCA: c.Spec.IsCA,
		},
	})
	fatal(err)
	bundle, err := pki.SignCSRTemplate(cas, caKey, template)
	fatal(err)
	keyPEM, err := pki.EncodePrivateKey(key, c.Spec.PrivateKey.Encoding)
	fatal(err)
	return map[string][]byte{"tls.crt": bundle.ChainPEM, "tls.key": keyPEM, "ca.crt": bundle.CAPEM}
}

// validate lets "wanfed validate" check the settings of a pod: the file of the
// ConfigMap with the flags of the container.
func (d *datacenter) validate(p *pod) {
	p.Helper()
	c := p.set.Spec.Template.Spec.Containers[0]
	d.process(p, c) // sets the variables
	file, settings := "", map[string]any{}
	flags := map[string]string{}
	for _, arg := range d.args(p, c)[1:] {
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !ok {
			p.Fatalf("argument %q of %s, want --FLAG=VALUE", arg, p.name)
		}
		if name == "config-file" {
			file = value
		} else {
			flags[strings.ReplaceAll(name, "-", "_")] = value
		}
	}
	data, err := os.ReadFile(filepath.Join(p.root, file))
	if err == nil {
		err = json.Unmarshal(data, &settings)
	}
	if err != nil {
		p.Fatal(err)
	}
	for name, value := range flags {
		settings[name] = value
	}
	if data, err = json.Marshal(settings); err != nil {
		p.Fatal(err)
	}
	p.write("/tmp/settings.json", data, 0o644, 0)
	if out := p.exec("validate", "/tmp/settings.json"); !strings.HasSuffix(out, "/tmp/settings.json: valid\n") {
		p.Errorf("wanfed validate = %s, want that the settings of %s are valid:\n%s", out, p.name, data)
	}
}

// TestChart_Federation runs two datacenters: one with certificates that
// cert-manager signs, three servers and two gateways behind one address; and one
// with certificates in Secrets.
func TestChart_Federation(t *testing.T) {
	n := newNetwork(t)
	a := newAuthority(t, "dc1", "dc2")
	dc1 := &datacenter{subnet: 1, secrets: map[string]map[string][]byte{}, chart: render(t, "wanfed", fmt.Sprintf(`datacenter: dc1
certificates: {ca: %s, certManager: {caSecret: dc1-ca}}
gateway: {wan: "198.51.100.1:8443", shutdownDelaySeconds: 0, drainSeconds: 1}
`, a.text(t)))}
	for _, c := range dc1.certificates {
		dc1.secrets[c.Spec.SecretName] = a.issue(t, "dc1", c)
	}
	dc2 := &datacenter{subnet: 2, secrets: map[string]map[string][]byte{}, chart: render(t, "wanfed", fmt.Sprintf(`datacenter: dc2
primary: {datacenter: dc1, gateways: ["198.51.100.1:8443"]}
certificates: {source: secrets, ca: %s}
server: {replicas: 1}
gateway: {replicas: 1, wan: "203.0.113.2:8443", shutdownDelaySeconds: 0, drainSeconds: 1}
`, a.text(t)))}
	for _, role := range []string{"server", "gateway"} {
		a.run(t, "tls", "cert", "create", "--"+role, "--datacenter", "dc2", "--node", "wanfed-"+role+"-0")
		dc2.secrets["wanfed-"+role+"-0"] = map[string][]byte{
			"tls.crt": a.read(t, "dc2-"+role+"-wanfed-0.pem"), "tls.key": a.read(t, "dc2-"+role+"-wanfed-0-key.pem"),
		}
	}
	for _, d := range []*datacenter{dc1, dc2} {
		d.create(n)
		for _, p := range d.pods {
			d.start(p)
			d.validate(p)
		}
	}
	n.balance("198.51.100.1", dc1.pod(t, "wanfed-gateway-0"), dc1.pod(t, "wanfed-gateway-1"))
	n.balance("203.0.113.2", dc2.pod(t, "wanfed-gateway-0"))
	for dc, d := range map[string]*datacenter{"dc1": dc1, "dc2": dc2} {
		for _, p := range d.pods {
			p.ready(a.ca, dc)
		}
		d.pod(t, "wanfed-server-0").wantAll("at first")
	}
	if out := dc2.pod(t, "wanfed-server-0").exec("federation", "list"); !strings.Contains(out, "2/2 healthy") {
		t.Errorf("wanfed federation list = %s, want both gateways of dc1", out)
	}

	// All pods of dc1 are replaced at once: they have new addresses.
	for _, p := range dc1.pods {
		p.stop()
	}
	for _, p := range dc1.pods {
		dc1.readdress(p)
	}
	n.in(n.prefix, "nft", "flush", "chain", "ip", "lb", "before")
	n.balance("198.51.100.1", dc1.pod(t, "wanfed-gateway-0"), dc1.pod(t, "wanfed-gateway-1"))
	n.balance("203.0.113.2", dc2.pod(t, "wanfed-gateway-0"))
	begin := time.Now()
	for _, p := range dc1.pods {
		dc1.start(p)
	}
	for _, p := range dc1.pods {
		p.ready(a.ca, "dc1")
	}
	for _, d := range []*datacenter{dc1, dc2} {
		d.pod(t, "wanfed-server-0").wantAll("with new addresses")
	}
	t.Logf("ok %v after all pods of dc1 have new addresses", time.Since(begin).Round(time.Millisecond))
}

// TestChart_Enrolment runs a primary that creates its CA, and a datacenter that
// joins with a token in a Secret. Then the Secret is deleted and the pod has
// another address.
func TestChart_Enrolment(t *testing.T) {
	n := newNetwork(t)
	dc1 := &datacenter{subnet: 1, chart: render(t, "wanfed", `datacenter: dc1
certificates: {source: enrolment}
server: {replicas: 1, settings: {dead_server_after: 1h, operators_from: [dc2, dc3]}}
gateway: {replicas: 1, wan: "198.51.100.1:8443", shutdownDelaySeconds: 0, drainSeconds: 1}
`)}
	dc1.create(n)
	primary := dc1.pod(t, "wanfed-0")
	dc1.start(primary)
	n.balance("198.51.100.1", primary)
	primary.exec("status", "--wait", "1m")
	const dir = "/var/lib/wanfed/machine"
	token := strings.TrimSpace(primary.exec("token", "issue", "--dc", "dc2", "--dir", dir))

	dc2 := &datacenter{subnet: 2, secrets: map[string]map[string][]byte{"token": {"token": []byte(token + "\n")}},
		chart: render(t, "wanfed", `datacenter: dc2
certificates: {source: enrolment, enrolment: {tokenSecret: token}}
server: {replicas: 1}
gateway: {replicas: 1, wan: "203.0.113.2:8443", shutdownDelaySeconds: 0, drainSeconds: 1}
`)}
	dc2.create(n)
	secondary := dc2.pod(t, "wanfed-0")
	n.balance("203.0.113.2", secondary)
	dc2.start(secondary)
	wantOK := func(when string) {
		t.Helper()
		for _, p := range []*pod{primary, secondary} {
			p.ready(filepath.Join(p.root, dir, "ca.pem"), map[*pod]string{primary: "dc1", secondary: "dc2"}[p])
			p.wantAll(when)
		}
	}
	wantOK("after joining")

	clear(dc2.secrets)
	for d, p := range maps.All(map[*datacenter]*pod{dc1: primary, dc2: secondary}) {
		p.stop()
		d.readdress(p)
	}
	n.in(n.prefix, "nft", "flush", "chain", "ip", "lb", "before")
	n.balance("198.51.100.1", primary)
	n.balance("203.0.113.2", secondary)
	dc1.start(primary)
	dc2.start(secondary)
	wantOK("with new addresses")
}
