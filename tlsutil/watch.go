// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long the files must be left alone before they are read: certificate and key are replaced one after the other.
	settle = 150 * time.Millisecond
	// settleMax is when they are read even if something in their folders keeps changing.
	settleMax = 2 * time.Second
	// recheck finds what notifications miss: network file systems, folders that were replaced, certificates whose time has
	// now come, and the approach of expiry.
	recheck = time.Minute
)

// Run watches the files' folders, and those that symbolic links lead to, until ctx ends, and reloads what changed: files
// written in place, renamed into place, or swapped by a symbolic link as Kubernetes does. It logs one line for each reload
// and one for each state of the files that it refused. It also warns as the certificate's end comes near. It returns nil,
// and starts no goroutine that outlives it. Call it once.
func (i *Identity) Run(ctx context.Context) error {
	w := &watcher{i: i, watched: map[string]bool{}}
	if fs, err := fsnotify.NewWatcher(); err != nil {
		i.logger.Warn("no file notifications; certificate files are looked at periodically", "interval", recheck, "err", err)
	} else {
		defer fs.Close()
		w.fs, w.events, w.errs = fs, fs.Events, fs.Errors
	}
	return w.run(ctx)
}

// watcher is the state of Run, owned by its goroutine. Without notifications, events and errs are nil: never ready.
type watcher struct {
	i       *Identity
	fs      *fsnotify.Watcher
	events  <-chan fsnotify.Event
	errs    <-chan error
	watched map[string]bool // folders

	refused string // the last error that was logged
	warned  time.Duration
}

func (w *watcher) run(ctx context.Context) error {
	tick := time.NewTicker(recheck)
	defer tick.Stop()
	w.follow()
	timer := time.NewTimer(settle) // for what changed between Load and the first watch
	defer timer.Stop()
	first := time.Now() // of the events that timer waits out; zero: none
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.events:
			if !ok { // nothing but an error inside fsnotify closes it
				w.events = nil
				continue
			}
			if first.IsZero() {
				first = time.Now()
			}
			timer.Reset(min(settle, settleMax-time.Since(first)))
			continue
		case err, ok := <-w.errs:
			if !ok {
				w.errs = nil
				continue
			}
			w.i.logger.Warn("file notifications were lost; looking at the certificate files now", "err", err)
		case <-tick.C:
			if !first.IsZero() {
				continue // timer is about to do it, when the files are whole
			}
		case <-timer.C:
		}
		first = time.Time{}
		w.look(time.Now())
	}
}

// look reloads if the files changed, and follows their links anew.
func (w *watcher) look(now time.Time) {
	w.follow()
	changed, err := w.i.reloadChanged()
	switch {
	case err != nil && err.Error() != w.refused:
		w.refused = err.Error()
		w.i.logger.Error("changed certificate files were refused; the old certificate stays in use", "err", err)
	case err != nil:
	case changed:
		w.refused, w.warned = "", 0
		leaf := w.i.Leaf()
		w.i.logger.Info("certificate reloaded", "cert", w.i.files.Cert, "peer", w.i.Peer(), "not_after", stamp(leaf.NotAfter),
			"serial", leaf.SerialNumber.Text(16))
		w.i.warnKeyMode()
	default:
		w.refused = ""
	}
	w.warnExpiry(now)
}

// expiryWarnings are the times before the end at which to warn, longest first.
var expiryWarnings = []time.Duration{30 * day, 14 * day, 7 * day, 3 * day, 2 * day, day, 12 * time.Hour, time.Hour, time.Nanosecond}

const day = 24 * time.Hour

// warnExpiry warns once for each of expiryWarnings that is passed, of the own certificate or of a CA's that expires before
// it. A certificate made for less than twice the time of a warning is not warned about that early.
func (w *watcher) warnExpiry(now time.Time) {
	ends := w.i.current.Load().ends
	step := expiryStep(ends.NotBefore, ends.NotAfter, now)
	if step == 0 || step == w.warned {
		return
	}
	w.warned = step
	log := w.i.logger.With("cert", w.i.files.Cert, "expires", title(ends), "not_after", stamp(ends.NotAfter))
	if left := ends.NotAfter.Sub(now); left > 0 {
		log.Warn("certificate expires soon; make a new one and put it in place of the file", "left", left.Round(time.Second))
	} else {
		log.Error("certificate has expired and all peers refuse it; put a new one in place of the file")
	}
}

// expiryStep is the smallest of expiryWarnings that is at least what is left, 0 when it is too early for any.
func expiryStep(notBefore, notAfter, now time.Time) (step time.Duration) {
	left := max(notAfter.Sub(now), time.Nanosecond)
	for _, s := range expiryWarnings {
		if left <= s && 2*s <= notAfter.Sub(notBefore) {
			step = s
		}
	}
	return step
}

// follow watches the folders of the files and of what they link to, and no longer those that they left.
func (w *watcher) follow() {
	if w.fs == nil {
		return
	}
	want := map[string]bool{}
	for _, f := range []string{w.i.files.CA, w.i.files.Cert, w.i.files.Key} {
		want[filepath.Dir(f)] = true
		if real, err := filepath.EvalSymlinks(f); err == nil {
			want[filepath.Dir(real)] = true
		}
	}
	for dir := range w.watched {
		if !want[dir] {
			_ = w.fs.Remove(dir) // fails when the folder is gone, which is fine
			delete(w.watched, dir)
		}
	}
	for dir := range want {
		// Adding again is harmless, and needed when the folder was replaced by another of its name.
		if err := w.fs.Add(dir); err == nil {
			w.watched[dir] = true
		} else if !w.watched[dir] {
			w.i.logger.Debug("folder cannot be watched", "dir", dir, "err", err)
		}
	}
}
