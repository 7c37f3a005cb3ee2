// SPDX-License-Identifier: MPL-2.0

package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	consul "github.com/hashicorp/consul/api"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// pair has a client of each kind on two servers: locks of dying clients are
// acquired by others, and those of surviving clients stay held.
type pair struct {
	*trio
	first, second *subprocess.Server
}

// TestLocks_SurviveKills kills the leader of a server group and half of the
// clients that hold locks. The clients are the helpers Lock, Semaphore and
// RenewPeriodic of the Go client of Consul, "wanfed lock", the backend of
// Terraform, and consul-template with deduplication. Others acquire the locks of
// the killed clients. The other clients keep their locks for longer than their
// TTL, which needs renewals at the new leader.
//
// With WANFED_CHAOS, the lock of a killed Terraform is acquired when its session
// expires, which takes about 40 s. Otherwise the session is destroyed.
func TestLocks_SurviveKills(t *testing.T) {
	t.Parallel()
	g := newTrio(t)
	leader := g.leader()
	p := &pair{g, g.servers[(leader+1)%3], g.servers[(leader+2)%3]}
	dying, living := g.mortal(p.first), g.client(p.first)

	var mu sync.Mutex
	var clients []lockClient
	var wg sync.WaitGroup
	for _, start := range []func() lockClient{
		func() lockClient { return p.goLock(dying.Client, living) },
		func() lockClient { return p.goSemaphore(dying.Client, living) },
		func() lockClient { return p.goSession(dying.Client, living) },
		p.wanfedLock, p.terraform, p.consulTemplate,
	} {
		wg.Go(func() {
			c := start()
			mu.Lock()
			defer mu.Unlock()
			clients = append(clients, c)
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}

	killed := time.Now()
	g.servers[leader].Kill()
	dying.killed.Store(true)
	for _, c := range clients {
		if c.kill != nil {
			c.kill()
		}
	}
	g.leader()
	results := make(chan error, len(clients))
	waiting := 0
	for _, c := range clients {
		if c.acquire == nil {
			continue
		}
		waiting++
		go func() {
			err := c.acquire()
			if err != nil {
				err = fmt.Errorf("%s: %w", c.name, err)
			} else {
				t.Logf("%s: another holder after %v", c.name, time.Since(killed).Round(100*time.Millisecond))
			}
			results <- err
		}()
	}
	limit := time.After(time.Minute)
	for range waiting {
		select {
		case err := <-results:
			if err != nil {
				t.Error(err)
			}
		case <-limit:
			t.Fatal("the locks of the killed clients have no other holder after a minute")
		}
	}
	for _, c := range clients {
		if c.end != nil {
			if err := c.end(); err != nil {
				t.Errorf("%s that was not killed: %v", c.name, err)
			}
		}
	}
}

// lockClient is a kind of client, of which one holds a lock until it is killed,
// and another one until end.
type lockClient struct {
	name string
	// kill kills the first. Nil: it is killed with the others.
	kill func()
	// acquire waits until another client has the lock of the killed one. Nil: the
	// client is not installed.
	acquire func() error
	// end returns an error if the second has lost its lock, and ends it.
	end func() error
}

const testTTL = "10s" // the shortest one

// fail reports err, and returns whether there is one. It may be called from any
// goroutine.
func (p *pair) fail(what string, err error) bool {
	if err != nil {
		p.t.Errorf("%s = %v, want nil", what, err)
	}
	return err != nil
}

// isClosed returns an error if a channel of a helper reports a lost lock.
func isClosed(lost <-chan struct{}) error {
	select {
	case <-lost:
		return errors.New("the lock was lost, want it held")
	default:
		return nil
	}
}

func (p *pair) goLock(dying, living *consul.Client) lockClient {
	lock := func(c *consul.Client, key string) (*consul.Lock, <-chan struct{}, error) {
		l, err := c.LockOpts(&consul.LockOptions{Key: key, SessionTTL: testTTL, LockDelay: time.Millisecond})
		if err != nil {
			return nil, nil, err
		}
		lost, err := l.Lock(nil)
		return l, lost, err
	}
	_, _, err := lock(dying, "lock/dying")
	if p.fail("Lock()", err) {
		return lockClient{}
	}
	held, lost, err := lock(living, "lock/living")
	if p.fail("Lock()", err) {
		return lockClient{}
	}
	return lockClient{
		name:    "Lock",
		acquire: func() error { _, _, err := lock(p.client(p.second), "lock/dying"); return err },
		end:     func() error { return errors.Join(isClosed(lost), held.Unlock(), held.Destroy()) },
	}
}

func (p *pair) goSemaphore(dying, living *consul.Client) lockClient {
	acquire := func(c *consul.Client, prefix string) (*consul.Semaphore, <-chan struct{}, error) {
		s, err := c.SemaphoreOpts(&consul.SemaphoreOptions{Prefix: prefix, Limit: 1, SessionTTL: testTTL})
		if err != nil {
			return nil, nil, err
		}
		lost, err := s.Acquire(nil)
		return s, lost, err
	}
	_, _, err := acquire(dying, "semaphore/dying")
	if p.fail("Acquire()", err) {
		return lockClient{}
	}
	held, lost, err := acquire(living, "semaphore/living")
	if p.fail("Acquire()", err) {
		return lockClient{}
	}
	return lockClient{
		name:    "Semaphore",
		acquire: func() error { _, _, err := acquire(p.client(p.second), "semaphore/dying"); return err },
		end:     func() error { return errors.Join(isClosed(lost), held.Release(), held.Destroy()) },
	}
}

// goSession holds keys by sessions without checks, which RenewPeriodic renews.
func (p *pair) goSession(dying, living *consul.Client) lockClient {
	type renewed struct {
		id   string
		stop chan struct{}
		done chan error
	}
	hold := func(c *consul.Client, key string) *renewed {
		r := &renewed{stop: make(chan struct{}), done: make(chan error, 1)}
		entry := &consul.SessionEntry{TTL: testTTL, LockDelay: time.Millisecond, Behavior: consul.SessionBehaviorDelete}
		var err error
		if r.id, _, err = c.Session().CreateNoChecks(entry, nil); p.fail("CreateNoChecks()", err) {
			return r
		}
		ok, _, err := c.KV().Acquire(&consul.KVPair{Key: key, Session: r.id}, nil)
		if err == nil && !ok {
			err = errors.New("not acquired")
		}
		p.fail("Acquire()", err)
		go func() { r.done <- c.Session().RenewPeriodic(testTTL, r.id, nil, r.stop) }()
		return r
	}
	hold(dying, "session/dying")
	held := hold(living, "session/living")
	holder := func(c *consul.Client, key string) (string, error) {
		e, _, err := c.KV().Get(key, nil)
		if err != nil || e == nil {
			return "", err
		}
		return e.Session, nil
	}
	return lockClient{
		name: "RenewPeriodic",
		acquire: func() error { // the end of the session deletes the key
			c := p.client(p.second)
			e, meta, err := c.KV().Get("session/dying", nil)
			for err == nil && e != nil {
				e, meta, err = c.KV().Get("session/dying", &consul.QueryOptions{WaitIndex: meta.LastIndex})
			}
			return err
		},
		end: func() error {
			id, err := holder(living, "session/living")
			if err == nil && id != held.id {
				err = fmt.Errorf("the key is held by the session %q, want %q", id, held.id)
			}
			close(held.stop)
			if err := errors.Join(err, <-held.done); err != nil {
				return err
			}
			id, err = holder(p.client(p.second), "session/living") // RenewPeriodic has destroyed the session
			if err == nil && id != "" {
				err = fmt.Errorf("the key is held by the session %q after the end of RenewPeriodic", id)
			}
			return err
		},
	}
}

func (p *pair) wanfedLock() lockClient {
	hold := func(key string) *held {
		return p.hold(p.command(p.first, p.bin, "lock", "--ttl", testTTL, "--lock-delay", "0s", key, "--",
			"sh", "-c", "touch wanfed-"+key+"; until [ -e wanfed-end ]; do sleep 0.1; done"), "wanfed-"+key)
	}
	first, second := hold("dying"), hold("living")
	return lockClient{
		name: "wanfed lock",
		kill: first.kill,
		acquire: func() error {
			return output(p.command(p.second, p.bin, "lock", "dying", "--", "true"))
		},
		end: func() error { return p.release(second, "wanfed-end") },
	}
}

// output runs a command. Its error has the output of the command.
func output(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// release creates the file that ends a holder, and returns the error of the
// holder.
func (p *pair) release(h *held, file string) error {
	if err := os.WriteFile(filepath.Join(p.dir, file), nil, 0o600); err != nil {
		return err
	}
	select {
	case err := <-h.done:
		if err != nil {
			err = fmt.Errorf("%w: %s", err, &h.out)
		}
		return err
	case <-time.After(waitLimit):
		return errors.New("the client has not ended")
	}
}

// terraform applies configurations. An apply holds the lock of its state until
// the file terraform-end exists.
func (p *pair) terraform() lockClient {
	const name = "Terraform"
	if _, err := exec.LookPath("terraform"); err != nil {
		p.t.Log("terraform is not installed: its backend is not tested")
		return lockClient{}
	}
	run := func(s *subprocess.Server, state string, args ...string) *exec.Cmd {
		cmd := p.command(s, "terraform", args...)
		cmd.Dir = filepath.Join(p.dir, "terraform-"+state)
		return cmd
	}
	hold := func(state string) *held {
		dir := filepath.Join(p.dir, "terraform-"+state)
		config := `
terraform {
  backend "consul" { path = "terraform/` + state + `" }
}
resource "terraform_data" "x" {
  provisioner "local-exec" {
    command = "touch ../terraform-holds-` + state + `; until [ -e ../terraform-end ]; do sleep 0.1; done"
  }
}
`
		err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "main.tf"), []byte(config), 0o600))
		if err == nil {
			err = output(run(p.first, state, "init", "-no-color", "-input=false"))
		}
		if p.fail("terraform init", err) {
			return nil
		}
		return p.hold(run(p.first, state, "apply", "-no-color", "-input=false", "-auto-approve"), "terraform-holds-"+state)
	}
	first, second := hold("dying"), hold("living")
	if first == nil || second == nil {
		return lockClient{}
	}
	err := output(run(p.second, "dying", "plan", "-no-color", "-input=false"))
	if err == nil || !strings.Contains(err.Error(), "Error acquiring the state lock") {
		p.t.Errorf("terraform plan of a locked state = %v, want an error about the lock", err)
	}
	shows := func(state, want string) error {
		out, err := run(p.second, state, "state", "list").Output()
		if err != nil || strings.TrimSpace(string(out)) != want {
			return fmt.Errorf("terraform state list = %v: %s, want %s", err, out, want)
		}
		return nil
	}
	return lockClient{
		name: name,
		kill: first.kill,
		acquire: func() error {
			c := p.client(p.second)
			e, _, err := c.KV().Get("terraform/dying/.lock", nil)
			if err != nil || e == nil || e.Session == "" {
				return fmt.Errorf("lock of the killed process = %+v, %w, want a session", e, err)
			}
			if !long() {
				if _, err := c.Session().Destroy(e.Session, nil); err != nil {
					return err
				}
			}
			return output(run(p.second, "dying", "plan", "-no-color", "-input=false", "-lock-timeout=60s"))
		},
		end: func() error {
			return errors.Join(p.release(second, "terraform-end"), shows("living", "terraform_data.x"))
		},
	}
}

// consulTemplate runs two processes with deduplication. One of them renders for
// both. When it is killed, the other one renders.
func (p *pair) consulTemplate() lockClient {
	program, err := exec.LookPath("consul-template")
	if err != nil {
		p.t.Log("consul-template is not installed: it is not tested")
		return lockClient{}
	}
	keys := p.client(p.second).KV()
	put := func(value string) error {
		_, err := keys.Put(&consul.KVPair{Key: "app/color", Value: []byte(value)}, nil)
		return err
	}
	const config = `deduplicate { ttl = "` + testTTL + `" }`
	err = errors.Join(put("blue"),
		os.WriteFile(filepath.Join(p.dir, "in.tpl"), []byte(`{{ key "app/color" }}`), 0o600),
		os.WriteFile(filepath.Join(p.dir, "template.hcl"), []byte(config), 0o600))
	if p.fail("configuration of consul-template", err) {
		return lockClient{}
	}
	start := func(s *subprocess.Server, out string) *held {
		return p.hold(p.command(s, program, "-dedup", "-config", "template.hcl",
			"-consul-addr", strings.TrimPrefix(s.HTTP, "http://"), "-consul-ssl", "-consul-ssl-ca-cert", p.operator.CA,
			"-consul-ssl-cert", p.operator.Cert, "-consul-ssl-key", p.operator.Key, "-template", "in.tpl:"+out), out)
	}
	renders := func(out, want string, limit time.Duration) error {
		last := ""
		for start := time.Now(); time.Since(start) < limit; time.Sleep(20 * time.Millisecond) {
			b, err := os.ReadFile(filepath.Join(p.dir, out))
			if last = string(b); err == nil && last == want {
				return nil
			}
		}
		return fmt.Errorf("%s = %q after %v, want %q", out, last, limit, want)
	}
	holder := start(p.first, "a.out")
	start(p.second, "b.out")
	err = put("red")
	if err == nil {
		err = errors.Join(renders("a.out", "red", waitLimit), renders("b.out", "red", waitLimit))
	}
	p.fail("rendering", err)
	return lockClient{
		name: "consul-template",
		kill: holder.kill,
		acquire: func() error {
			if err := put("green"); err != nil {
				return err
			}
			return renders("b.out", "green", time.Minute)
		},
	}
}
