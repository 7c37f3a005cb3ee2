// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// start calls run in a goroutine, with a context that ends with the test.
func start(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

func filesIn(dir string) Files {
	return Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"),
		Key: filepath.Join(dir, "key.pem")}
}

// put writes the files, without a rename.
func put(t testing.TB, f Files, ca []byte, p KeyPair) {
	t.Helper()
	for path, b := range map[string][]byte{f.CA: ca, f.Cert: p.Cert, f.Key: p.Key} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// blockReload runs change, and delays a reload of i until change returns.
func blockReload(i *Identity, change func()) {
	i.reload.Lock()
	defer i.reload.Unlock()
	change()
}

// loadLogged loads f with a logger that collects lines.
func loadLogged(t *testing.T, f Files) (*Identity, *lines) {
	t.Helper()
	l := newLines()
	i, err := Load(f, "wanfed", slog.New(slog.NewTextHandler(l, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return i, l
}

var srv1 = CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1"}

func issueFrom(t *testing.T, ca KeyPair, r CertRequest) KeyPair {
	t.Helper()
	r.CA = ca
	return newCert(t, r)
}

func serialOf(t *testing.T, p KeyPair) string { return "serial=" + leafOf(t, p).SerialNumber.Text(16) }

func TestRun_Reloads(t *testing.T) {
	ca := newCA(t, CARequest{})
	f := filesIn(t.TempDir())
	put(t, f, ca.Cert, issueFrom(t, ca, srv1))
	i, log := loadLogged(t, f)

	// Files change between Load and Run.
	p := issueFrom(t, ca, srv1)
	put(t, f, ca.Cert, p)
	start(t, i.Run)
	log.take(t, serialOf(t, p))

	p = issueFrom(t, ca, srv1)
	blockReload(i, func() { put(t, f, ca.Cert, p) })
	log.take(t, serialOf(t, p))

	// Files are renamed into place, one after the other.
	p = issueFrom(t, ca, srv1)
	blockReload(i, func() {
		for path, b := range map[string][]byte{f.Cert: p.Cert, f.Key: p.Key} {
			if err := os.WriteFile(path+".new", b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}
	})
	log.take(t, serialOf(t, p))

	// A certificate of another peer is rejected with one line.
	other := issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv2"})
	blockReload(i, func() { put(t, f, ca.Cert, other) })
	log.take(t, "is now that of server/dc1/srv2, not of server/dc1/srv1")
	if got := i.Peer(); got.Node != "srv1" {
		t.Errorf("Peer() = %v, want node srv1", got)
	}
	blockReload(i, func() { put(t, f, ca.Cert, p) }) // no log line for the current certificate
	p = issueFrom(t, ca, srv1)
	blockReload(i, func() { put(t, f, ca.Cert, p) })
	log.take(t, serialOf(t, p))

	// A key file that others can read causes a warning.
	p = issueFrom(t, ca, srv1)
	blockReload(i, func() {
		put(t, f, ca.Cert, p)
		if err := os.Chmod(f.Key, 0o644); err != nil {
			t.Fatal(err)
		}
	})
	log.take(t, serialOf(t, p))
	log.take(t, "private key file can be read by group or others")
	log.none(t)
}

// TestRun_KubernetesLinks replaces files as Kubernetes does. The files are
// symbolic links into ..data, a symbolic link to a directory. A rename replaces
// ..data.
func TestRun_KubernetesLinks(t *testing.T) {
	ca := newCA(t, CARequest{})
	dir := t.TempDir()
	version := func(name string) KeyPair {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		p := issueFrom(t, ca, srv1)
		put(t, filesIn(filepath.Join(dir, name)), ca.Cert, p)
		link(t, name, filepath.Join(dir, "..tmp"))
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
		return p
	}
	version("..1")
	for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
		link(t, filepath.Join("..data", name), filepath.Join(dir, name))
	}
	i, log := loadLogged(t, filesIn(dir))
	start(t, i.Run)
	for _, name := range []string{"..2", "..3"} {
		p := version(name)
		log.take(t, serialOf(t, p))
	}
	log.none(t)
}

// TestRun_LinksToOtherDirectories tests files that are symbolic links to files
// in another directory, and later to files in a third directory.
func TestRun_LinksToOtherDirectories(t *testing.T) {
	ca := newCA(t, CARequest{})
	dir, a, b := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, filesIn(a), ca.Cert, issueFrom(t, ca, srv1))
	pb := issueFrom(t, ca, srv1)
	put(t, filesIn(b), ca.Cert, pb)
	linkTo := func(to string) {
		for _, name := range []string{"ca.pem", "cert.pem", "key.pem"} {
			link(t, filepath.Join(to, name), filepath.Join(dir, "tmp"))
			if err := os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	linkTo(a)
	i, log := loadLogged(t, filesIn(dir))
	start(t, i.Run)
	blockReload(i, func() { linkTo(b) })
	log.take(t, serialOf(t, pb))
	p := issueFrom(t, ca, srv1)
	blockReload(i, func() { put(t, filesIn(b), ca.Cert, p) })
	log.take(t, serialOf(t, p))
	log.none(t)
}

func link(t *testing.T, to, path string) {
	t.Helper()
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
}

func TestExpiryStep(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		validity, left, want time.Duration
	}{
		{365 * day, 365 * day, 0},
		{365 * day, 30*day + 1, 0},
		{365 * day, 30 * day, 30 * day},
		{365 * day, 8 * day, 14 * day},
		{365 * day, 13 * time.Hour, day},
		{365 * day, 1, 1},
		{365 * day, 0, 1},
		{365 * day, -day, 1},
		{59 * day, 20 * day, 0}, // the validity is too short for a warning at 30 days
		{59 * day, 14 * day, 14 * day},
		{time.Hour, time.Minute, 0},
		{time.Hour, -time.Minute, 1},
	} {
		end := start.Add(tt.validity)
		if got := expiryStep(start, end, end.Add(-tt.left)); got != tt.want {
			t.Errorf("expiryStep() with validity %v and %v left = %v, want %v", tt.validity, tt.left, got, tt.want)
		}
	}
}
