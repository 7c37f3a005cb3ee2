// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/server"
)

const (
	// bundleTimeout bounds the time in which the parts of a bundle are collected.
	bundleTimeout = 20 * time.Second
	// maxLog bounds the part of a log in a bundle, in bytes: its end.
	maxLog = 1 << 20
	// maxPart bounds a part that a gateway sends, in bytes.
	maxPart = 64 << 20
	// maxSecret bounds a file with secrets, in bytes.
	maxSecret = 1 << 20
)

// BundleConfig configures WriteBundle.
type BundleConfig struct {
	Config
	Report Report
	// Logs are paths of logs. Those that do not exist are omitted.
	Logs []string
	// Duration is the time during which the bundle also captures the processes
	// repeatedly, the processor time, and Watches. 0: one capture. Maximum:
	// MaxDuration. If ctx ends before, the bundle has what was captured.
	Duration time.Duration
	// Interval is the time between two captures. Required with Duration.
	Interval time.Duration
	// Watches are live logs for the time of Duration.
	Watches []LogWatch
}

// WriteBundle writes a tar.gz archive with the report, the settings, the ends of
// the logs, and what the processes of the machine report. errors.txt in the
// archive lists the parts that are missing. WriteBundle returns an error only if
// it cannot write to w.
func WriteBundle(ctx context.Context, w io.Writer, cfg BundleConfig) error {
	running := ctx
	ctx, cancel := context.WithTimeout(ctx, bundleTimeout)
	defer cancel()
	zip := gzip.NewWriter(w)
	b := &bundle{tar: tar.NewWriter(zip), secrets: cfg.Machine.secrets()}
	b.addJSON("version.json", version.Get())
	b.addJSON("diagnose.json", cfg.Report)
	b.addSettings(cfg.Machine)
	b.addServer(ctx, cfg.Client)
	b.addGateway(ctx, cfg.Machine)
	if cfg.Duration > 0 {
		b.addCaptures(running, cfg)
	} else {
		b.addProfiles(ctx, cfg)
	}
	for _, path := range cfg.Logs {
		text, err := tail(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		b.add("logs/"+filepath.Base(path), text, err)
	}
	b.add("errors.txt", []byte(b.missing.String()), nil)
	return errors.Join(b.err, b.tar.Close(), zip.Close())
}

// bundle is an archive that is being written.
type bundle struct {
	tar     *tar.Writer
	secrets []string
	missing strings.Builder // parts that could not be collected
	err     error           // of the first failed write
}

// add adds a file, or an error to the list of missing parts.
func (b *bundle) add(name string, content []byte, err error) {
	if err != nil {
		fmt.Fprintf(&b.missing, "%s: %s\n", name, describe(err))
		return
	}
	b.addRaw(name, redact(content, b.secrets))
}

// addRaw adds a file that has no secret.
func (b *bundle) addRaw(name string, content []byte) {
	if b.err != nil {
		return
	}
	head := &tar.Header{Name: "wanfed/" + name, Mode: 0o600, Size: int64(len(content)), ModTime: time.Now()}
	if b.err = b.tar.WriteHeader(head); b.err == nil {
		_, b.err = b.tar.Write(content)
	}
}

func (b *bundle) addJSON(name string, v any) {
	text, err := json.MarshalIndent(v, "", "  ")
	b.add(name, text, err)
}

// addSettings adds the settings by name and value. The files themselves have
// comments, which may contain anything.
func (b *bundle) addSettings(m Machine) {
	list := func(name string, s any) {
		var text strings.Builder
		for _, shown := range settings.Show(s) {
			fmt.Fprintf(&text, "%s = %s\n", shown.Name, shown.Value)
		}
		b.add("settings/"+name+".txt", []byte(text.String()), nil)
	}
	if m.Server != nil {
		list("server", m.Server)
	}
	if m.Gateway != nil {
		list("gateway", m.Gateway)
	}
}

// part is a part of a bundle that a process serves.
type part struct{ name, path string }

func (b *bundle) addServer(ctx context.Context, c *api.Client) {
	b.addServerParts(ctx, c, "server/", []part{
		{"status.json", api.StatusPath}, {"members-wan.json", "/v1/agent/members?wan=1"},
		{"members-lan.json", "/v1/agent/members"}, {"federation-states.json", "/v1/internal/federation-states"},
		{"controllers.json", api.ControllersPath}, {"gateway-snapshots.json", api.GatewaySnapshotsPath},
		{"metrics.txt", "/metrics"},
	})
}

func (b *bundle) addServerParts(ctx context.Context, c *api.Client, dir string, parts []part) {
	for _, p := range parts {
		rctx, cancel := context.WithTimeout(ctx, requestTimeout)
		text, err := c.Body(rctx, p.path)
		cancel()
		b.add(dir+p.name, text, err)
	}
}

// addGateway adds what the admin address of the gateway serves.
func (b *bundle) addGateway(ctx context.Context, m Machine) {
	b.addGatewayParts(ctx, m, "gateway/", []part{
		{"status.json", "/status"}, {"snapshot.json", "/snapshot"}, {"routes.json", "/routes"}, {"metrics.txt", "/metrics"},
	})
}

func (b *bundle) addGatewayParts(ctx context.Context, m Machine, dir string, parts []part) {
	if m.Gateway == nil || m.Gateway.AdminAddr == "" {
		return
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: requestTimeout}
	for _, p := range parts {
		text, err := fetch(ctx, client, "http://"+m.Gateway.AdminAddr+p.path)
		b.add(dir+p.name, text, err)
	}
}

func fetch(ctx context.Context, c *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxPart))
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return text, err
}

// tail returns the end of a file, from the beginning of a line.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, size-maxLog), io.SeekStart); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxLog))
	if size > maxLog {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text, err
}

var (
	// secretWord matches the parts of a secret file that are secrets: keys and
	// tokens, but not the names in JSON and PEM.
	secretWord = regexp.MustCompile(`[A-Za-z0-9+/=_.~-]{16,}`)
	// secretTexts match secrets by their form. The first group is kept.
	secretTexts = []*regexp.Regexp{
		regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
		regexp.MustCompile(`(?i)(\b(?:bearer|basic) +)[A-Za-z0-9+/=_.~-]{8,}`),
		regexp.MustCompile(`(\bwanfed[0-9]\.)[A-Za-z0-9_-]{8,}`), // tokens of wanfed token issue
		regexp.MustCompile(`(://)[^/\s"@]+@`),
		regexp.MustCompile(`(?i)(\b[a-z_-]*(?:token|secret|password|passphrase|passwd|encrypt)["\\]*\s*[=:]\s*["\\]*)[^\s"\\,;]+`),
	}
)

// secrets returns the secrets in the files of the machine.
func (m Machine) secrets() (all []string) {
	var files []string
	if s := m.Server; s != nil {
		files = append(files, s.KeyFile, s.EncryptFile, s.MonitorTokenFile, s.IssuingPassphrase,
			filepath.Join(s.DataDir, "keyring.json"))
		keys, _ := filepath.Glob(filepath.Join(server.CADir(s.DataDir), "*"))
		files = append(files, keys...)
	}
	if g := m.Gateway; g != nil {
		files = append(files, g.KeyFile, g.MonitorTokenFile)
	}
	for _, path := range files {
		text, err := settings.ReadFile(cmp.Or(path, os.DevNull), maxSecret)
		if err != nil {
			continue // this user cannot read it, so its content is in no part
		}
		if whole := strings.TrimSpace(string(text)); len(whole) >= 4 && !strings.Contains(whole, "\n") {
			all = append(all, whole)
		}
		all = append(all, secretWord.FindAllString(string(text), -1)...)
	}
	return all
}

// redact replaces the secrets in a text.
func redact(text []byte, secrets []string) []byte {
	for _, s := range secrets {
		text = bytes.ReplaceAll(text, []byte(s), []byte(settings.Removed))
	}
	for _, re := range secretTexts {
		text = re.ReplaceAll(text, []byte("${1}"+settings.Removed))
	}
	return text
}
