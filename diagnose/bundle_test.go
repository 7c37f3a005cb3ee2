// SPDX-License-Identifier: MPL-2.0

package diagnose

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api"
)

// readBundle returns the files of a bundle by name.
func readBundle(t *testing.T, b []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "wanfed/")] = string(text)
	}
}

// Secrets in settings, comments, secret files, logs and the responses of
// processes are in no file of a bundle.
func TestWriteBundle_NoSecrets(t *testing.T) {
	const (
		gossipKey    = "pUqJrVyVRj5jsiYEkM/tFQYfWyJIv4s3XkvDwy7Cu5s="
		olderKey     = "HS5lJ+XuTlYKWaeGYyG+/A1SQDTs3KkZVlbGyHZuoLg="
		monitorToken = "s3cr3t-monitor"
		passphrase   = "correct horse battery staple"
		consulPass   = "hunter2hunter2"
		bearer       = "abcdefgh12345678.sig"
		enrolToken   = "wanfed1.AAECAwQFBgcICQoLDA0ODw"
		inComment    = "CommentedOutPassw0rd"
		aclToken     = "b1gs3cr7-aaaa-bbbb-cccc-ddddeeeeffff"
	)
	dir, paths := machineFiles(t, "# password: "+inComment+"\nmonitor_addr = \"127.0.0.1:9999\"\n")
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	m := ReadMachine(paths)
	m.Server.EncryptFile = put("gossip.key", gossipKey+"\n")
	m.Server.MonitorTokenFile = put("monitor.token", monitorToken+"\n")
	m.Server.IssuingPassphrase = put("ca-passphrase", passphrase+"\n")
	m.Gateway.Consul = "http://joe:" + consulPass + "@127.0.0.1:8500"
	put("server/keyring.json", fmt.Sprintf(`{"primary": %q, "keys": [%q]}`, gossipKey, olderKey))
	key, err := os.ReadFile(m.Server.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	log := put("server.log", strings.Join([]string{
		"level=INFO msg=started keys=[" + gossipKey + "," + olderKey + "]", "Authorization: Bearer " + bearer,
		"X-Consul-Token: " + aclToken, `{"token":"` + aclToken + `"}`, "wanfed join " + enrolToken, string(key),
		"GET /metrics " + monitorToken, "decrypted with " + passphrase, "last line",
	}, "\n"))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s leaked %s %s\n", r.URL, gossipKey, key)
	}))
	defer srv.Close()
	client, err := api.NewClient(api.ClientConfig{Addr: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	m.Gateway.AdminAddr, m.Gateway.Pprof = srv.Listener.Addr().String(), true

	var b bytes.Buffer
	err = WriteBundle(t.Context(), &b, BundleConfig{
		Config: Config{Machine: m, Client: client}, Logs: []string{log, dir + "/no.log"},
		Report: Report{Findings: []Finding{{Cause: "bad key " + gossipKey}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	files := readBundle(t, b.Bytes())
	for name, want := range map[string]string{
		"version.json": "go1.", "diagnose.json": "bad key", "settings/server.txt": `dc = "dc2"`,
		"settings/gateway.txt": `wan = "10.77.0.5:8443"`, "server/status.json": api.StatusPath,
		"server/metrics.txt": "/metrics", "gateway/goroutines.txt": "goroutine",
		"logs/server.log": "last line", "errors.txt": "",
	} {
		if got, ok := files[name]; !ok || !strings.Contains(got, want) {
			t.Errorf("%s = %q, want it to contain %q", name, got, want)
		}
	}
	keyLine := strings.Split(string(key), "\n")[1]
	for _, secret := range []string{
		gossipKey, olderKey, monitorToken, passphrase, consulPass, bearer, enrolToken, inComment, aclToken, keyLine, "PRIVATE KEY",
	} {
		for name, text := range files {
			if strings.Contains(text, secret) {
				t.Errorf("%s contains the secret %q: %s", name, secret, text)
			}
		}
	}
}

// A profile is binary, so secrets are not replaced: it is left out.
func TestCheckProfile(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	fmt.Fprint(w, "main.f s3cr3t-token")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for secret, want := range map[string]string{"another": "", "s3cr3t-token": "contains a secret"} {
		b := &bundle{secrets: []string{secret}}
		if err := b.checkProfile(zipped.Bytes()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("checkProfile() with secret %s = %v, want %q", secret, err, want)
		}
	}
	if err := new(bundle).checkProfile([]byte("text")); err == nil {
		t.Error("checkProfile(text) = nil, want an error")
	}
}

// Without processes, a bundle lists the parts that are missing.
func TestWriteBundle_Missing(t *testing.T) {
	var b bytes.Buffer
	if err := WriteBundle(t.Context(), &b, BundleConfig{Config: Config{Client: noServer(t)}}); err != nil {
		t.Fatal(err)
	}
	if got := readBundle(t, b.Bytes())["errors.txt"]; !strings.Contains(got, "server/status.json: no server answers") {
		t.Errorf("errors.txt = %q, want the missing status", got)
	}
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	text := strings.Repeat("0123456789\n", maxLog/11+1000) + "end\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := tail(path)
	if err != nil || len(got) > maxLog || !strings.HasPrefix(string(got), "0123456789\n") || !strings.HasSuffix(text, string(got)) {
		t.Errorf("tail = %d bytes, %v, want the last lines", len(got), err)
	}
}

// A bundle with a duration has captures, and live logs without secrets.
func TestWriteBundle_Captures(t *testing.T) {
	const password = "hunter2hunter2"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "served %s", r.URL.Path)
	}))
	defer srv.Close()
	client, err := api.NewClient(api.ClientConfig{Addr: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err = WriteBundle(t.Context(), &b, BundleConfig{
		Config: Config{Client: client}, Duration: MinInterval, Interval: MinInterval,
		Watches: []LogWatch{{"live.log", func(ctx context.Context, f func(string, uint64) error) error {
			if err := errors.Join(f("password="+password, 0), f("last line", 7)); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}}, {"refused.log", func(context.Context, func(string, uint64) error) error { return errors.New("not permitted") }}},
	})
	if err != nil {
		t.Fatal(err)
	}
	files := readBundle(t, b.Bytes())
	captures := 0
	for name, text := range files {
		if strings.HasPrefix(name, "captures/") && strings.HasSuffix(name, "/server/metrics.txt") && text == "served /metrics" {
			captures++
		}
	}
	if captures != 2 {
		t.Errorf("bundle has %d captures, want 2: %v", captures, files)
	}
	if got := files["logs/live.log"]; got != "password=(removed)\n(7 lines were dropped)\nlast line\n" {
		t.Errorf("live.log = %q, want the lines without the password", got)
	}
	if got := files["errors.txt"]; !strings.Contains(got, "logs/refused.log: not permitted") {
		t.Errorf("errors.txt = %q, want the refused log", got)
	}
}
