// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is the time without a change after which the files are read. It is
	// longer than the usual time between the replacement of the certificate and
	// that of the key, because a new certificate does not belong to the old
	// key.
	settle = 150 * time.Millisecond
	// settleMax is the maximum time between the first change and reading the
	// files.
	settleMax = 2 * time.Second
	// recheck is the interval of checks without a notification. These checks
	// cover network file systems, replaced directories, certificates that
	// become valid, and expiry, also that of the certificates of peers.
	recheck = time.Minute
)

// Run reloads the files after each change, until ctx ends. It watches the
// directories of the files and of the targets of symbolic links. Files may be
// written in place, renamed into place, or switched by a symbolic link as in
// Kubernetes. Run logs one line for each reload and for each rejected change,
// and warns before the certificate expires. After each reload, once a minute,
// and when the certificate of a peer expires, Run verifies the peers of all open
// connections (see Guard). Run returns nil. It may be called only once.
func (i *Identity) Run(ctx context.Context) error {
	w := &watcher{i: i, watched: map[string]bool{}}
	defer w.refreshes.Wait()
	if fs, err := fsnotify.NewWatcher(); err != nil {
		i.logger.Warn("no file notifications; certificate files are checked periodically", "interval", recheck,
			"err", err)
	} else {
		defer fs.Close()
		w.fs, w.events, w.errs = fs, fs.Events, fs.Errors
	}
	return w.run(ctx)
}

// watcher is the state of Run. Only the goroutine of Run uses it.
type watcher struct {
	i       *Identity
	fs      *fsnotify.Watcher     // nil: no notifications
	events  <-chan fsnotify.Event // nil: no notifications
	errs    <-chan error
	watched map[string]bool // watched directories

	refreshes sync.WaitGroup // handshakes in progress

	rejected string        // text of the last error; "" after a check without an error
	warned   time.Duration // last logged element of expiryWarnings
}

// run checks the files when they have not changed for settle after an event,
// and periodically without events, until ctx ends.
func (w *watcher) run(ctx context.Context) error {
	tick := time.NewTimer(recheck)
	defer tick.Stop()
	w.watchDirs()
	timer := time.NewTimer(settle) // checks for changes between Load and the first watch
	defer timer.Stop()
	// pendingSince is the time of the first event since the last check, or zero.
	// The start of Run counts as an event.
	pendingSince := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.events:
			if !ok { // internal error of fsnotify
				w.events = nil
				continue
			}
			if pendingSince.IsZero() {
				pendingSince = time.Now()
			}
			timer.Reset(min(settle, settleMax-time.Since(pendingSince)))
			continue
		case err, ok := <-w.errs:
			if !ok {
				w.errs = nil
				continue
			}
			w.i.logger.Warn("file notifications lost; checking the certificate files", "err", err)
		case <-tick.C:
			if !pendingSince.IsZero() {
				tick.Reset(recheck)
				continue // the timer will trigger the check
			}
		case <-timer.C:
		case <-w.i.conns.sooner:
			tick.Reset(w.checkPeers(ctx))
			continue
		}
		pendingSince = time.Time{}
		w.check(time.Now())
		tick.Reset(w.checkPeers(ctx))
	}
}

// check reloads the files if they have changed, and updates the watches.
func (w *watcher) check(now time.Time) {
	w.watchDirs()
	changed, err := w.i.reloadChanged()
	rejected := ""
	if err != nil {
		rejected = err.Error()
	}
	if rejected != "" && rejected != w.rejected {
		w.i.logger.Error("changed certificate file rejected; its old content stays in use", "err", err)
	}
	w.rejected = rejected
	if changed {
		w.warned = 0
		leaf := w.i.Leaf()
		w.i.logger.Info("certificate reloaded", "cert", w.i.files.Cert, "peer", w.i.Peer(), "not_after",
			stamp(leaf.NotAfter),
			"serial", leaf.SerialNumber.Text(16))
		w.i.warnKeyMode()
	}
	w.warnExpiry(now)
}

// checkPeers closes the connections of peers whose certificates are no longer
// valid, and starts the handshakes that are due. It returns the time until the
// next check.
func (w *watcher) checkPeers(ctx context.Context) time.Duration {
	pause := recheck
	w.i.conns.schedule(time.Now().Add(recheck)) // before, so that no connection is missed
	if next := w.i.closeInvalid(time.Now()); !next.IsZero() {
		pause = min(recheck, max(time.Until(next)+settle, settle))
	}
	if next := w.refreshPeers(ctx, time.Now()); !next.IsZero() {
		pause = min(pause, max(time.Until(next), 0))
	}
	return pause
}

// expiryWarnings are the times before expiry of the warnings, longest first.
// The last one, time.Nanosecond, stands for the expiry itself.
var expiryWarnings = []time.Duration{30 * day, 14 * day, 7 * day, 3 * day, 2 * day, day, 12 * time.Hour, time.Hour,
	time.Nanosecond}

const day = 24 * time.Hour

// warnExpiry logs each of expiryWarnings once. The warning concerns the
// certificate, or a CA certificate that expires earlier. A warning is skipped
// if the validity of the certificate is less than twice the time before expiry.
func (w *watcher) warnExpiry(now time.Time) {
	ends := w.i.current.Load().ends
	step := expiryStep(ends.NotBefore, ends.NotAfter, now)
	if step == 0 || step == w.warned {
		return
	}
	w.warned = step
	log := w.i.logger.With("cert", w.i.files.Cert, "expires", title(ends), "not_after", stamp(ends.NotAfter))
	if left := ends.NotAfter.Sub(now); left > 0 {
		log.Warn("certificate expires soon; create a new one and replace the file", "left", left.Round(time.Second))
	} else {
		log.Error("certificate has expired and all peers reject it; create a new one and replace the file")
	}
}

// expiryStep returns the smallest of expiryWarnings that is at least the
// remaining time, or 0 if it is too early for a warning.
func expiryStep(notBefore, notAfter, now time.Time) (step time.Duration) {
	left := max(notAfter.Sub(now), time.Nanosecond)
	for _, s := range expiryWarnings {
		if left <= s && 2*s <= notAfter.Sub(notBefore) {
			step = s
		}
	}
	return step
}

// watchDirs watches the directories of the files and of the targets of symbolic
// links, and removes other watches.
func (w *watcher) watchDirs() {
	if w.fs == nil {
		return
	}
	want := map[string]bool{}
	for _, f := range []string{w.i.files.CA, w.i.files.Cert, w.i.files.Key, RevocationFile(w.i.files.CA)} {
		want[filepath.Dir(f)] = true
		if real, err := filepath.EvalSymlinks(f); err == nil {
			want[filepath.Dir(real)] = true
		}
	}
	for dir := range w.watched {
		if !want[dir] {
			_ = w.fs.Remove(dir) // returns an error if the directory was removed
			delete(w.watched, dir)
		}
	}
	for dir := range want {
		// Adding a directory again has no effect, unless a new directory has
		// replaced it.
		if err := w.fs.Add(dir); err == nil {
			w.watched[dir] = true
		} else if !w.watched[dir] {
			w.i.logger.Debug("cannot watch directory", "dir", dir, "err", err)
		}
	}
}
