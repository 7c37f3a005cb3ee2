// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// Path is the prefix of the paths of profiles.
const Path = "/debug/pprof/"

const (
	// MaxSeconds bounds the duration of a profile.
	MaxSeconds = 60
	// maxTraceSeconds bounds the duration of a trace, which grows by megabytes
	// per second.
	maxTraceSeconds = 10
	// defaultSeconds and defaultTraceSeconds are the durations without a
	// parameter. They are those of net/http/pprof.
	defaultSeconds      = 30
	defaultTraceSeconds = 1
	// writeTimeout bounds the time to send a profile.
	writeTimeout = 30 * time.Second
	// mutexFraction and blockRate select the sampled waits: one of 10 waits for a
	// mutex, and one per 10 µs of blocking.
	mutexFraction = 10
	blockRate     = 10_000 // nanoseconds
)

// timed has the profiles with a duration. A function records until ctx ends.
var timed = map[string]struct {
	seconds, maxSeconds int
	record              func(ctx context.Context, w io.Writer) error
}{
	"profile": {defaultSeconds, MaxSeconds, func(ctx context.Context, w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		<-ctx.Done()
		pprof.StopCPUProfile()
		return nil
	}},
	"trace": {defaultTraceSeconds, maxTraceSeconds, func(ctx context.Context, w io.Writer) error {
		if err := trace.Start(w); err != nil {
			return err
		}
		<-ctx.Done()
		trace.Stop()
		return nil
	}},
	"mutex": {defaultSeconds, MaxSeconds, func(ctx context.Context, w io.Writer) error {
		defer runtime.SetMutexProfileFraction(runtime.SetMutexProfileFraction(mutexFraction))
		<-ctx.Done()
		return pprof.Lookup("mutex").WriteTo(w, 0)
	}},
	"block": {defaultSeconds, MaxSeconds, func(ctx context.Context, w io.Writer) error {
		defer runtime.SetBlockProfileRate(0)
		runtime.SetBlockProfileRate(blockRate)
		<-ctx.Done()
		return pprof.Lookup("block").WriteTo(w, 0)
	}},
}

// instant lists the profiles of a moment.
var instant = []string{"allocs", "goroutine", "heap", "threadcreate"}

const index = `heap, allocs, goroutine, threadcreate: ?debug=1 is text, goroutine?debug=2 has all stacks
profile, mutex, block: ?seconds=1 to 60 (30)
trace: ?seconds=1 to 10 (1)
`

// slot is held while a profile with a duration is recorded. The runtime has one
// profiler for all handlers of the process.
var slot = make(chan struct{}, 1)

// Authorize returns an error unless peer is an operator of the datacenter of
// own, or has the certificate of own, which is this process.
func Authorize(peer, own tlsutil.Peer) error {
	if peer == own || peer.Role == tlsutil.RoleOperator && peer.DC == own.DC {
		return nil
	}
	return fmt.Errorf("%v may not read profiles of %v: only operators of %s may; make a certificate with: "+
		"wanfed tls cert create --operator --datacenter %s", peer, own, own.DC, own.DC)
}

// Handler returns the handler of all paths below Path. It answers every caller.
func Handler(logger *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path+"{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, index) // an error means that the client has disconnected
	})
	for _, name := range instant {
		p := pprof.Lookup(name)
		mux.HandleFunc("GET "+Path+name, func(w http.ResponseWriter, r *http.Request) { writeInstant(w, r, p) })
	}
	for name := range timed {
		mux.HandleFunc("GET "+Path+name, func(w http.ResponseWriter, r *http.Request) { record(w, r, name, logger) })
	}
	return mux
}

func writeInstant(w http.ResponseWriter, r *http.Request, p *pprof.Profile) {
	debug := 0
	if text := r.FormValue("debug"); text != "" {
		var err error
		if debug, err = strconv.Atoi(text); err != nil || debug < 0 || debug > 2 {
			http.Error(w, fmt.Sprintf("debug=%.20q is not 0, 1 or 2", text), http.StatusBadRequest)
			return
		}
	}
	var b bytes.Buffer // a caller that reads slowly does not slow the profile down
	if err := p.WriteTo(&b, debug); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, p.Name(), debug, b.Bytes())
}

// record responds with a profile of the duration that r requests.
func record(w http.ResponseWriter, r *http.Request, name string, logger *slog.Logger) {
	kind := timed[name]
	d, err := parseSeconds(r.FormValue("seconds"), kind.seconds, kind.maxSeconds)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case slot <- struct{}{}:
		defer func() { <-slot }()
	default:
		http.Error(w, "another profile is being recorded: try again when it has ended", http.StatusTooManyRequests)
		return
	}
	// The error means that there is no connection, in tests.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + writeTimeout))
	logger.Info("profile recorded", "kind", name, "duration", d, "addr", r.RemoteAddr)
	ctx, cancel := context.WithTimeout(r.Context(), d)
	defer cancel()
	var b bytes.Buffer
	err = kind.record(ctx, &b)
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the client has disconnected, or the process stops
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("cannot record the profile: %v", err), http.StatusInternalServerError)
		return
	}
	send(w, name, 0, b.Bytes())
}

// parseSeconds returns the duration of a parameter in seconds.
func parseSeconds(text string, byDefault, most int) (time.Duration, error) {
	n := byDefault
	if text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > most {
			return 0, fmt.Errorf("seconds=%.20q is not a number from 1 to %d", text, most)
		}
	}
	return time.Duration(n) * time.Second, nil
}

func send(w http.ResponseWriter, name string, debug int, profile []byte) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if debug > 0 {
		h.Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	}
	_, _ = w.Write(profile) // an error means that the client has disconnected
}
