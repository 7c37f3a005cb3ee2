// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/profile"
	"github.com/wanfed/wanfed/tlsutil"
)

// cpuTime is the duration of a processor profile in a bundle.
const cpuTime = 3 * time.Second

// The profiles in a bundle. Those with the extension pprof are for "go tool
// pprof".
var (
	stacks = part{"goroutines.txt", profile.Path + "goroutine?debug=1"}
	heap   = part{"heap.pprof", profile.Path + "heap"}
)

// cpuProfile is the processor time during about d.
func cpuProfile(d time.Duration) (p part, recorded time.Duration) {
	seconds := min(max(int(d.Seconds()), 1), profile.MaxSeconds)
	return part{"cpu.pprof", profile.Path + fmt.Sprintf("profile?seconds=%d", seconds)}, time.Duration(seconds) * time.Second
}

// addProfiles adds profiles of the server and of the gateway of the machine.
func (b *bundle) addProfiles(ctx context.Context, cfg BundleConfig) {
	cpu, recorded := cpuProfile(cpuTime)
	for _, p := range []part{stacks, heap, cpu} {
		b.addRecorded("", recordProfile(ctx, cfg.Config, p, recorded))
	}
}

// recording is a profile of one process.
type recording struct {
	name string // process/profile
	text []byte
	err  error
}

// recordProfile returns a profile of the server and of the gateway of the
// machine, which record at the same time. recorded is the duration of the
// profile, at most.
func recordProfile(ctx context.Context, cfg Config, p part, recorded time.Duration) []recording {
	limit := recorded + requestTimeout
	sources := []func(ctx context.Context) ([]byte, error){
		func(ctx context.Context) ([]byte, error) { return serverProfile(ctx, cfg, p.path, limit) },
	}
	all := []recording{{name: "server/" + p.name}}
	if g := cfg.Machine.Gateway; g != nil && g.AdminAddr != "" {
		all = append(all, recording{name: "gateway/" + p.name})
		sources = append(sources, func(ctx context.Context) ([]byte, error) { return gatewayProfile(ctx, g, p.path) })
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var wg sync.WaitGroup
	for i, get := range sources {
		wg.Go(func() { all[i].text, all[i].err = get(ctx) })
	}
	wg.Wait()
	return all
}

// addRecorded adds profiles to a directory of the archive.
func (b *bundle) addRecorded(dir string, all []recording) {
	for _, r := range all {
		if strings.HasSuffix(r.name, ".pprof") {
			b.addProfile(dir+r.name, r.text, r.err)
		} else {
			b.add(dir+r.name, r.text, r.err)
		}
	}
}

// addProfile adds a compressed profile unchanged, unless it contains a secret.
func (b *bundle) addProfile(name string, content []byte, err error) {
	if err == nil {
		err = b.checkProfile(content)
	}
	if err != nil {
		b.add(name, nil, err)
		return
	}
	b.addRaw(name, content)
}

// checkProfile returns an error unless content is compressed and has none of the
// secrets.
func (b *bundle) checkProfile(content []byte) error {
	zip, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("not a profile: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(zip, maxPart))
	if err != nil {
		return fmt.Errorf("not a profile: %w", err)
	}
	for _, s := range b.secrets {
		if bytes.Contains(text, []byte(s)) {
			return errors.New("the profile contains a secret")
		}
	}
	return nil
}

// serverProfile returns a profile of the server, which requires https and a
// certificate.
func serverProfile(ctx context.Context, cfg Config, path string, limit time.Duration) ([]byte, error) {
	addr := cfg.Client.Addr()
	if plain, ok := strings.CutPrefix(addr, "http://"); ok {
		addr = "https://" + plain // a server with an address for plain text accepts TLS there too
	}
	if cfg.Identity == nil {
		return nil, errors.New("profiles need the certificate of the server or of an operator: " +
			"set --cert-file, --key-file and --ca-file")
	}
	c, err := api.NewClient(api.ClientConfig{Addr: addr, Identity: cfg.Identity, Timeout: limit})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Body(ctx, path)
}

// gatewayProfile returns a profile of the gateway, with its own certificate.
func gatewayProfile(ctx context.Context, g *gatewayd.Settings, path string) ([]byte, error) {
	transport, scheme := &http.Transport{DisableKeepAlives: true}, "http://"
	if !g.Pprof {
		files := tlsutil.Files{CA: g.CAFile, Cert: g.CertFile, Key: g.KeyFile}
		id, err := tlsutil.Load(files, cmp.Or(g.Domain, tlsutil.DefaultDomain), slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		transport, scheme = gatewayd.AdminTransport(id), "https://"
	}
	return fetch(ctx, &http.Client{Transport: transport}, scheme+g.AdminAddr+path)
}
