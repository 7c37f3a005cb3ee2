// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Status tells how the gateway gets its routes.
type Status struct {
	// Server is the address of the server in use; empty while there is none.
	Server string
	// Registered is when a server last acknowledged a heartbeat.
	Registered time.Time
	// SnapshotAt is when the snapshot in use was received; zero when it came from disk, or there is none.
	SnapshotAt time.Time
	// HasSnapshot says that there are routes, FromDisk that they are those of an earlier run.
	HasSnapshot, FromDisk bool
	LastError             string
	LastErrorAt           time.Time
}

// warnEvery is how often a failure that goes on is logged, at level Warn.
const warnEvery = time.Minute

// warning is what was last logged of a failure.
type warning struct {
	text string
	at   time.Time
}

// Status returns how it goes.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// failed notes a failure. One that goes on is logged when it changes and each minute, not at each attempt.
func (c *Client) failed(what string, err error) {
	now := time.Now()
	c.mu.Lock()
	text := status.Convert(err).Message()
	if c.noDial != nil && status.Code(err) == codes.Unavailable {
		text = c.noDial.Error() // gRPC only quotes it
	}
	text = strings.ReplaceAll(text, "\n", "; ")
	c.status.LastError, c.status.LastErrorAt = what+": "+text, now
	last := c.warned[what]
	loud := last.text != text || now.Sub(last.at) >= warnEvery
	if loud {
		c.warned[what] = warning{text, now}
	}
	c.mu.Unlock()
	level := slog.LevelDebug
	if loud {
		level = slog.LevelWarn
	}
	c.cfg.Logger.Log(context.Background(), level, what, "err", text)
}

// worked ends a failure.
func (c *Client) worked(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.warned, what)
}
