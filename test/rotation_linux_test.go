// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/test/lab"
)

// caStatus is the output of wanfed tls ca status.
type caStatus struct {
	Phase              string
	Aborted            bool
	Issuer, Keep, Drop string
	Completed          int
	Waiting            []struct{ Datacenter, Role, Node, Reason string }
	text               string
}

func (e enrolled) caStatus() (s caStatus) {
	e.Helper()
	s.text = e.wanfed("", "tls", "ca", "status", "--output", "json")
	if err := json.Unmarshal([]byte(s.text), &s); err != nil {
		e.Fatalf("wanfed tls ca status = %s: %v", s.text, err)
	}
	return s
}

// link sets the link of the machine with the other machines up or down.
func (e enrolled) link(state string) {
	e.Helper()
	if out, err := exec.Command("ip", "-n", e.ns, "link", "set", "wan0", state).CombinedOutput(); err != nil {
		e.Fatalf("ip link set wan0 %s in %s = %v: %s", state, e.ns, err, out)
	}
}

// TestCARotation replaces the CA of three datacenters while their servers receive
// requests. dc3 is cut off while the first phase runs, and again in the second
// one: the command waits for it and names it. Before, a rotation is aborted in the
// second phase. No request of another datacenter fails, no connection between them
// is lost, and the command continues after it was ended.
func TestCARotation(t *testing.T) {
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return "198.51.100." + string(rune('0'+i)) + "/24" }, 4)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443")
	for i, dc := range []string{"dc2", "dc3"} {
		m[i+1].wanfed("", "join", m[0].wanfed("", "token", "issue", "--dc", dc), "--wan", "198.51.100."+string(rune('2'+i))+":8443")
	}
	m[3].wanfed("", "join", m[0].wanfed("", "token", "issue", "--role", "server"))
	oldCA := read(t, m[0].dir+"/ca.pem")

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for _, c := range []struct {
		at enrolled
		dc string
	}{{m[0], "dc2"}, {m[1], "dc1"}, {m[3], "dc2"}, {m[3], "dc1"}} {
		clients.Go(func() { c.at.request(ctx, "/v1/catalog/nodes?dc="+c.dc) })
	}

	// An operator of dc2 has not renewed, so the second phase waits, and is aborted.
	run, end := m[0].rotate(ctx)
	defer end()
	run.await("dc2 operator cli: reissue its certificate")
	end()
	if s := m[0].caStatus(); s.Phase != "reissue" || s.Issuer != s.Keep {
		t.Fatalf("wanfed tls ca status = %s, want the second phase", s.text)
	}
	m[0].wanfed("", "tls", "ca", "rotate", "--abort")
	if s := m[0].caStatus(); s.Phase != "done" || !s.Aborted || len(s.Waiting) > 0 || s.Completed != 7 {
		t.Errorf("wanfed tls ca status after --abort = %s, want it done by 7 processes", s.text)
	}

	// The first phase, without dc3.
	m[2].link("down")
	run, end = m[0].rotate(ctx)
	defer end()
	run.await("phase 1 of 3, add: 5 servers and gateways have completed it, waiting for 1\n  dc3: does not respond")
	end()
	m[2].link("up")

	// The second phase, again without dc3 after it has completed the first one.
	run, end = m[0].rotate(ctx)
	defer end()
	run.await("phase 1 of 3, add: complete, 7 servers and gateways")
	m[2].link("down")
	run.await("phase 2 of 3, reissue: 5 servers and gateways have completed it, waiting for 2\n" +
		"  dc2 operator cli: reissue its certificate on its machine: wanfed tls renew\n  dc3: does not respond")
	m[1].wanfed("", "tls", "renew")
	end() // the command continues when it runs again
	run, end = m[0].rotate(ctx)
	defer end()
	run.await("continuing: phase 2 of 3, reissue")
	m[2].link("up")
	run.await("7 servers and gateways have completed it, waiting for 1\n  dc3 operator cli: reissue its certificate")
	m[2].wanfed("", "tls", "renew")
	run.await("complete: the old CA and its key were deleted")

	stop()
	clients.Wait()
	m[0].checkRotated(m, oldCA)
}

// checkRotated checks that no process trusts the old CA, that all are ok, and that
// no connection between dc1 and dc2 was closed.
func (e enrolled) checkRotated(m []enrolled, oldCA string) {
	e.Helper()
	ca := read(e.T, e.dir+"/ca.pem")
	for _, one := range m {
		got := read(e.T, one.dir+"/ca.pem") // its first line has the number of the change
		if got[strings.Index(got, "\n"):] != ca[strings.Index(ca, "\n"):] || strings.Contains(got, strings.TrimSpace(oldCA)) {
			e.Errorf("CA file in %s = %s, want that of %s without the old CA", one.ns, got, e.ns)
		}
	}
	for _, one := range m[:3] {
		if out := one.wanfed("", "status", "--wait", "20s"); !strings.Contains(out, "all 3 datacenters are ok") {
			e.Errorf("status in %s =\n%s", one.ns, out)
		}
	}
	for _, one := range []enrolled{m[0], m[1], m[3]} {
		if body := one.get(e.Context(), "/metrics"); !strings.Contains(body, "wanfed_tls_ended_total 0\n") {
			e.Errorf("metrics of %s without wanfed_tls_ended_total 0", one.ns)
		}
		for _, line := range linesOf(e.T, one.dir+"/data/server.log", regexp.MustCompile(`msg="connections closed`)) {
			e.Errorf("%s: %s", one.ns, line)
		}
	}
	files, err := os.ReadDir(e.dir + "/data/server/ca")
	if err != nil || len(files) != 4 {
		e.Errorf("files of the CAs = %v, %v, want 4", files, err)
	}
	// Another datacenter and another server join below the new CA.
	e.wanfed("", "token", "issue", "--dc", "dc4")
}

// TestCARotation_Force replaces the CA while dc3 is cut off. The command waits a
// minute in each phase, names dc3 and what it loses, and continues. The operator of
// dc3 then replaces its CA and certificates by hand, as in docs/certificates.md.
func TestCARotation_Force(t *testing.T) {
	onlyChaos(t) // each phase waits a minute
	t.Parallel()
	m := enrollNetwork(t, func(i int) string { return "198.51.100." + string(rune('0'+i)) + "/24" }, 3)
	m[0].wanfed("", "init", "--dc", "dc1", "--wan", "198.51.100.1:8443")
	for i, dc := range []string{"dc2", "dc3"} {
		m[i+1].wanfed("", "join", m[0].wanfed("", "token", "issue", "--dc", dc), "--wan", "198.51.100."+string(rune('2'+i))+":8443")
	}
	m[2].link("down")
	run, end := m[0].rotate(t.Context(), "--force")
	defer end()
	for _, want := range []string{
		"phase 1 of 3, add is not complete. Without it:\n  dc3: does not respond",
		"These refuse connections with certificates of the new CA until they have received it.",
		"dc2 operator cli: reissue its certificate",
	} {
		run.awaitFor(90*time.Second, want)
	}
	m[1].wanfed("", "tls", "renew")
	for _, want := range []string{
		"phase 2 of 3, reissue is not complete. Without it:\n  dc3: does not respond",
		"They need new certificates and a new CA file by hand.",
		"phase 3 of 3, remove is not complete. Without it:\n  dc3: does not respond",
		"complete: the old CA and its key were deleted",
	} {
		run.awaitFor(90*time.Second, want)
	}
	for _, one := range m[:2] {
		out := one.wanfed("", "status")
		if !regexp.MustCompile(`(?m)^dc1 .*\bok\b`).MatchString(out) || !regexp.MustCompile(`(?m)^dc2 .*\bok\b`).MatchString(out) {
			t.Errorf("status in %s =\n%s", one.ns, out)
		}
	}
	m[2].link("up")
	m[0].repair(m[2], "dc3")
	for _, one := range m {
		if out := one.wanfed("", "status", "--wait", "30s"); !strings.Contains(out, "all 3 datacenters are ok") {
			t.Errorf("status in %s =\n%s", one.ns, out)
		}
	}
	m[2].wanfed("", "token", "issue", "--role", "server") // its CA issues
}

// repair creates a CA and certificates for datacenter dc on the machine e of the
// primary, and replaces those of its machine m.
func (e enrolled) repair(m enrolled, dc string) {
	e.Helper()
	dir := e.TempDir()
	run := func(name string, args ...string) {
		e.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			e.Fatalf("%s %v = %v: %s", name, args, err, out)
		}
	}
	bin, ca, passphrase := lab.Binary(e.T), e.dir+"/data/server/ca/", "--ca-passphrase-file="+e.dir+"/ca-passphrase"
	run(bin, "tls", "ca", "create", "--dc", dc, "--ca-file", ca+"root.pem", "--ca-key-file", ca+"root-key.pem", passphrase)
	for _, role := range []string{"server", "gateway", "operator"} {
		args := []string{"tls", "cert", "create", "--" + role, "--datacenter", dc, "--ca-file", dc + "-wanfed-ca.pem",
			"--ca-key-file", dc + "-wanfed-ca-key.pem", passphrase}
		if role != "operator" {
			args = append(args, "--node", map[string]string{"server": "srv1", "gateway": "gw1"}[role])
		}
		run(bin, args...)
		run("cp", dc+"-"+role+"-wanfed-0.pem", m.dir+"/"+role+".pem")
		run("cp", dc+"-"+role+"-wanfed-0-key.pem", m.dir+"/"+role+"-key.pem")
	}
	run("cp", e.dir+"/ca.pem", m.dir+"/ca.pem")
	run("cp", dc+"-wanfed-ca.pem", m.dir+"/data/server/ca/dc.pem")
	run("sh", "-c", "openssl pkey -in "+dc+"-wanfed-ca-key.pem -passin file:"+e.dir+"/ca-passphrase -out "+m.dir+
		"/data/server/ca/dc-key.pem")
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rotating is a running wanfed tls ca rotate.
type rotating struct {
	enrolled
	mu    sync.Mutex
	out   strings.Builder
	wrote chan struct{} // size 1
}

// Write implements io.Writer.
func (r *rotating) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.wrote <- struct{}{}:
	default:
	}
	return r.out.Write(b)
}

func (r *rotating) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// rotate starts the command with more arguments. end ends it.
func (e enrolled) rotate(ctx context.Context, more ...string) (r *rotating, end func()) {
	e.Helper()
	r = &rotating{enrolled: e, wrote: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	args := append([]string{"netns", "exec", e.ns, lab.Binary(e.T), "tls", "ca", "rotate", "--yes", "--dir", e.dir}, more...)
	cmd := exec.CommandContext(ctx, "ip", args...)
	cmd.Stdout, cmd.Stderr = r, r
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	return r, sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait() // it was killed, or has ended
	})
}

// await waits until the command has printed want.
func (r *rotating) await(want string) {
	r.Helper()
	r.awaitFor(40*time.Second, want)
}

func (r *rotating) awaitFor(timeout time.Duration, want string) {
	r.Helper()
	began := time.Now()
	deadline := time.After(timeout)
	for !strings.Contains(r.text(), want) {
		select {
		case <-r.wrote:
		case <-deadline:
			r.Fatalf("wanfed tls ca rotate has printed\n%s\nwant %q", r.text(), want)
		}
	}
	r.Logf("%5.2f s until %q", time.Since(began).Seconds(), want)
}
