// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// lockedBuffer collects a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// twoKeyed are two datacenters of one server and one gateway each, whose gossip is encrypted.
type twoKeyed struct {
	t        *testing.T
	ca       *tlstest.CA
	dir      string
	log      lockedBuffer // of all servers
	parts    map[string]*part
	addrs    map[string]Addrs
	wan      map[string]string // of the gateways
	operator pb.KeyringServiceClient
}

func newTwoKeyed(t *testing.T, first gossip.Key) *twoKeyed {
	t.Helper()
	f := &twoKeyed{t: t, ca: tlstest.NewCA(t), dir: t.TempDir(), parts: map[string]*part{}, addrs: map[string]Addrs{}, wan: map[string]string{}}
	t.Cleanup(func() {
		for _, p := range f.parts {
			p.stop()
		}
		for _, p := range f.parts {
			p.end(t)
		}
		if t.Failed() {
			t.Logf("logs:\n%s", f.log.String())
		}
	})
	f.server("dc1", first)
	f.gateway("dc1")
	f.server("dc2", first)
	f.gateway("dc2")
	untilFederated(t, f.addrs["dc1"].HTTP, f.addrs["dc2"].HTTP)
	f.operator = keyringAt(t, f.ca, f.addrs["dc1"].Server, tlsutil.RoleOperator, "dc1")
	return f
}

func (f *twoKeyed) server(dc string, first gossip.Key) {
	f.t.Helper()
	files := f.ca.Files(f.t, tlsutil.RoleServer, "srv1", dc)
	cfg := Config{
		DC: dc, Node: "srv1", PrimaryDC: "dc1", DataDir: filepath.Join(f.dir, dc), CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key,
		EncryptFile: keyFile(f.t, first), Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	}
	if dc != "dc1" {
		cfg.PrimaryGateways = []string{f.wan["dc1"]}
	}
	f.parts[dc], f.addrs[dc] = startServer(f.t, cfg)
}

func (f *twoKeyed) gateway(dc string) {
	f.t.Helper()
	files := f.ca.Files(f.t, tlsutil.RoleGateway, "gw1", dc)
	at := append([]string(nil), f.wan[dc])
	if f.wan[dc] == "" {
		at = nil
	}
	f.parts["gw-"+dc], f.wan[dc] = startGateway(f.t, files, f.addrs[dc].Server, filepath.Join(f.dir, "gw-"+dc), at...)
}

func (f *twoKeyed) end(part string) {
	f.t.Helper()
	f.parts[part].end(f.t)
	delete(f.parts, part)
}

// gatewayAnew is for a server that has another address than before.
func (f *twoKeyed) gatewayAnew(dc string) {
	f.t.Helper()
	f.end("gw-" + dc)
	f.gateway(dc)
}

// untilLog waits until one line of the log matches all patterns.
func (f *twoKeyed) untilLog(patterns ...string) {
	f.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(starting)
	for {
		for line := range strings.Lines(f.log.String()) {
			if !slices.ContainsFunc(patterns, func(p string) bool { return !regexp.MustCompile(p).MatchString(line) }) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-limit:
			f.t.Fatalf("no line of the log matches all of %q", patterns)
		}
	}
}

// watchAlive checks, until it is stopped, that each server has both as alive.
func (f *twoKeyed) watchAlive() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	for dc, a := range f.addrs {
		c, err := api.NewClient(api.ClientConfig{Addr: a.HTTP})
		if err != nil {
			f.t.Fatal(err)
		}
		wg.Go(func() {
			defer c.Close()
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				members, err := c.Members(ctx, true, api.QueryOptions{})
				if err == nil && (len(members) != 2 || slices.ContainsFunc(members, func(m api.Member) bool { return m.Status != api.MemberAlive })) {
					f.t.Errorf("%s has members %v", dc, members)
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// refusesNonsense checks who and what is refused. The ring has only now.
func (f *twoKeyed) refusesNonsense(gone, now gossip.Key) {
	f.t.Helper()
	far := keyringAt(f.t, f.ca, f.addrs["dc2"].Server, tlsutil.RoleOperator, "dc2")
	for _, tt := range []struct {
		c    pb.KeyringServiceClient
		op   pb.ChangeKeyringRequest_Op
		key  string
		code codes.Code
		says string
	}{
		{f.operator, opRemove, now.Base64(), codes.FailedPrecondition, "is the primary"},
		{f.operator, opUse, gone.Base64(), codes.FailedPrecondition, "not in the keyring"},
		{f.operator, opUse, "no base64!", codes.FailedPrecondition, "not base64"},
		{f.operator, opInstall, now.Fingerprint(), codes.FailedPrecondition, "12 bytes, not 32"},
		{f.operator, 0, now.Base64(), codes.FailedPrecondition, "must be install, use or remove"},
		{far, opInstall, gone.Base64(), codes.FailedPrecondition, "dc2 is not the primary: the keyring is changed in dc1"},
		{keyringAt(f.t, f.ca, f.addrs["dc1"].Server, tlsutil.RoleServer, "dc1"), opInstall, gone.Base64(), codes.PermissionDenied, "role is server"},
	} {
		_, err := tt.c.Change(f.t.Context(), &pb.ChangeKeyringRequest{Op: tt.op, Key: tt.key})
		if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.says) {
			f.t.Errorf("%v: %v, want %v: %s", tt.op, err, tt.code, tt.says)
		}
	}
	if r, err := far.List(f.t.Context(), &pb.ListKeyringRequest{ShowKeys: true}); err != nil || !slices.Equal(r.Keys, []string{now.Base64()}) {
		f.t.Errorf("an operator lists the keys: %v, %v", r, err)
	}
	if r, err := far.List(f.t.Context(), &pb.ListKeyringRequest{}); err != nil || len(r.Keys) != 0 {
		f.t.Errorf("keys are shown to who has not asked for them: %v, %v", r, err)
	}
}
