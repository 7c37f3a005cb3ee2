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

// profiles lists the profiles in a bundle. Those with the extension pprof are
// for "go tool pprof".
var profiles = []struct{ name, path string }{
	{"goroutines.txt", profile.Path + "goroutine?debug=1"},
	{"heap.pprof", profile.Path + "heap"},
	{"cpu.pprof", profile.Path + fmt.Sprintf("profile?seconds=%d", int(cpuTime.Seconds()))},
}

// addProfiles adds profiles of the server and of the gateway of the machine. The
// processes record at the same time.
func (b *bundle) addProfiles(ctx context.Context, cfg BundleConfig) {
	type source struct {
		name string
		get  func(ctx context.Context, path string) ([]byte, error)
	}
	sources := []source{{"server", func(ctx context.Context, path string) ([]byte, error) {
		return serverProfile(ctx, cfg.Config, path)
	}}}
	if g := cfg.Machine.Gateway; g != nil && g.AdminAddr != "" {
		sources = append(sources, source{"gateway", func(ctx context.Context, path string) ([]byte, error) {
			return gatewayProfile(ctx, g, path)
		}})
	}
	for _, p := range profiles {
		texts, errs := make([][]byte, len(sources)), make([]error, len(sources))
		var wg sync.WaitGroup
		for i, s := range sources {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, cpuTime+requestTimeout)
				defer cancel()
				texts[i], errs[i] = s.get(ctx, p.path)
			})
		}
		wg.Wait()
		for i, s := range sources {
			name := s.name + "/" + p.name
			if strings.HasSuffix(name, ".pprof") {
				b.addProfile(name, texts[i], errs[i])
			} else {
				b.add(name, texts[i], errs[i])
			}
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
func serverProfile(ctx context.Context, cfg Config, path string) ([]byte, error) {
	c := cfg.Client
	if addr, plain := strings.CutPrefix(c.Addr(), "http://"); plain {
		if cfg.Identity == nil {
			return nil, errors.New("profiles need the certificate of the server or of an operator: " +
				"set --cert-file, --key-file and --ca-file")
		}
		var err error // a server with an address for plain text accepts TLS there too
		if c, err = api.NewClient(api.ClientConfig{Addr: "https://" + addr, TLS: cfg.Identity.ClientConfig("")}); err != nil {
			return nil, err
		}
		defer c.Close()
	}
	return c.Body(ctx, path)
}

// gatewayProfile returns a profile of the gateway, with its own certificate.
func gatewayProfile(ctx context.Context, g *gatewayd.Settings, path string) ([]byte, error) {
	transport := &http.Transport{DisableKeepAlives: true}
	scheme := "http://"
	if !g.Pprof {
		files := tlsutil.Files{CA: g.CAFile, Cert: g.CertFile, Key: g.KeyFile}
		id, err := tlsutil.Load(files, cmp.Or(g.Domain, tlsutil.DefaultDomain), slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		own := id.Peer()
		transport.TLSClientConfig = id.ClientConfig(strings.Join([]string{own.Node, string(own.Role), own.DC, id.Domain()}, "."))
		scheme = "https://"
	}
	return fetch(ctx, &http.Client{Transport: transport}, scheme+g.AdminAddr+path)
}
