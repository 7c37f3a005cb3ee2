// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/internal/atomicfile"
)

// The index decreases, as after a restored snapshot. The gateway follows the
// lower indexes.
func TestConsul_IndexDecreases(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	r.agent.SetIndex(1000)
	r.start(t)
	r.wantRoutes(t, sample)
	r.wantRegistered(t, true) // changes the index
	const path = "/v1/internal/federation-states/mesh-gateways?"
	wait(t, r.agent.Requests(), "blocked "+path+"index=1001&")
	r.agent.SetIndex(5)
	wait(t, r.agent.Requests(), "blocked "+path+"index=5&")
	next := proto.CloneOf(sample)
	next.Datacenters[0].Gateways = []string{"198.51.100.9:8443"}
	setAgent(r.agent, next)
	r.wantRoutes(t, next)

	// Index 0 is a fault of the agent. A query with index=0 would not block.
	wait(t, r.agent.Requests(), "blocked "+path+"index=6&")
	r.agent.SetIndex(0)
	wait(t, r.agent.Requests(), "blocked "+path+"index=1&")
}

// The agent restarts between two queries. It blocks the next query until its
// wait ends, because the index of the query is higher than its own. Then the
// gateway follows the lower indexes.
func TestConsul_IndexDecreasesUnnoticed(t *testing.T) {
	r := newConsulRig(t)
	r.wait = 300 * time.Millisecond
	setAgent(r.agent, sample)
	r.agent.SetIndex(1000)
	r.start(t)
	r.wantRoutes(t, sample)
	r.wantRegistered(t, true) // changes the index
	wait(t, r.agent.Requests(), "blocked /v1/internal/federation-states/mesh-gateways?index=1001&")
	r.agent.RestartUnnoticed()
	next := proto.CloneOf(sample)
	next.Datacenters[0].Gateways = []string{"198.51.100.9:8443"}
	setAgent(r.agent, next)
	r.wantRoutes(t, next)
	if consulWait > 10*time.Second {
		t.Errorf("consulWait = %v, want at most 10s: it bounds the delay after a restart", consulWait)
	}
}

func TestConsul_Token(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	r.agent.SetToken("secret")
	r.token = "wrong"
	stop := r.start(t)
	line := waitLine(t, r.logs, `level=WARN msg="cannot read the servers"`)
	if want := "answered 403: ACL not found; set CONSUL_HTTP_TOKEN"; !strings.Contains(line, want) {
		t.Errorf("log line = %s, want it to contain %s", line, want)
	}
	line = waitLine(t, r.logs, `level=WARN msg="cannot register"`)
	if want := "the gateway has no routes yet"; !strings.Contains(line, want) {
		t.Errorf("log line = %s, want it to contain %s", line, want)
	}
	stop()
	r.token = "secret"
	r.start(t)
	r.wantRoutes(t, sample)
	r.wantRegistered(t, true)
}

// The token in the file is replaced while the gateway runs, and then becomes
// invalid before it is replaced.
func TestConsul_TokenFileReplaced(t *testing.T) {
	r := newConsulRig(t)
	setAgent(r.agent, sample)
	r.tokenFile = filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := atomicfile.WriteFile(r.tokenFile, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	r.agent.SetToken("first")
	r.start(t)
	r.wantRoutes(t, sample)
	r.wantRegistered(t, true)
	for i, early := range []bool{true, false} {
		token := fmt.Sprintf("next%d", i)
		if early {
			write(token)
			r.agent.SetToken(token)
		} else {
			r.agent.SetToken(token)
			waitLine(t, r.logs, `level=WARN msg="cannot read the federation states"`)
			write(token)
		}
		next := proto.CloneOf(sample)
		next.Datacenters[0].Gateways = []string{fmt.Sprintf("198.51.100.%d:8443", 10+i)}
		setAgent(r.agent, next)
		r.wantRoutes(t, next)
	}
}
