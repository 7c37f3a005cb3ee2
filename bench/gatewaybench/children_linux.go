// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/wanfed/wanfed/bench/gatewaybench/load"
)

// The servers and the clients run as child processes of this program. They can
// then be pinned to a core, and their CPU time is measured separately. The
// first argument of a child is one of these names.
const (
	childServers = "servers" // arguments: certificate directory, plain address, TLS address
	childLoad    = "load"    // argument: a load.Spec in JSON
)

// loadResult is what the load process prints, in JSON.
type loadResult struct {
	Figures load.Figures
	Error   string
}

// runChild is the main function of a child process.
func runChild(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case args[0] == childServers && len(args) == 4:
		s, err := load.Listen(args[1], args[2], args[3])
		if err != nil {
			return err
		}
		fmt.Fprintln(out, s.RawAddr, s.TLSAddr)
		return s.Serve(ctx)
	case args[0] == childLoad && len(args) == 2:
		var s load.Spec
		if err := json.Unmarshal([]byte(args[1]), &s); err != nil {
			return err
		}
		var o loadResult
		f, err := load.Run(ctx, s)
		if o.Figures = f; err != nil {
			o.Error = err.Error()
		}
		return json.NewEncoder(out).Encode(o)
	}
	return fmt.Errorf("child process %s: wrong number of arguments", args[0])
}

// startServers starts the server process and stores the addresses of the
// servers in ph.
func startServers(self, certs string, core int, raw, tls string, ph *placeholders) (*process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command(self, childServers, certs, raw, tls)
	cmd.Stdout = w
	p, err := startPinned("servers", core, cmd, filepath.Join(ph.dir, "servers.log"))
	w.Close()
	if err != nil {
		return nil, err
	}
	if err = r.SetReadDeadline(time.Now().Add(startTimeout)); err == nil {
		var line string
		if line, err = bufio.NewReader(r).ReadString('\n'); err == nil {
			_, err = fmt.Sscan(line, &ph.raw, &ph.tls)
		}
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("start servers: %w: %s", err, p.output())
	}
	return p, nil
}

// loadTimeout returns the longest permitted duration of a load process.
func loadTimeout(s load.Spec) time.Duration {
	return time.Minute + s.Warmup + 4*s.Duration + s.Settle + 2*s.DrainTime
}

// runLoad runs one measurement in a child process.
func runLoad(ctx context.Context, self string, core int, s load.Spec, dir string) (load.Figures, error) {
	spec, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.Command(self, childLoad, string(spec))
	cmd.Stdout = &out
	p, err := startPinned("load", core, cmd, filepath.Join(dir, "load.log"))
	if err != nil {
		return nil, err
	}
	defer p.stop()
	select {
	case <-p.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(loadTimeout(s)):
		return nil, fmt.Errorf("the load process did not exit within %v", loadTimeout(s))
	}
	var o loadResult
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		return nil, fmt.Errorf("load process: %w (%v): %s", err, p.err, p.output())
	}
	if o.Error != "" {
		err = errors.New(o.Error)
	}
	return o.Figures, err
}
