// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/yamux"
)

// streamWindow is how much a stream may have under way, in bytes: what 400 Mbit/s need at 80 ms.
const streamWindow = 4 << 20

// maxStreams bounds the streams of one accepted session.
const maxStreams = 256

// muxConfig is the yamux configuration of both sides of a session.
func (tm timing) muxConfig(log *slog.Logger) *yamux.Config {
	c := yamux.DefaultConfig()
	c.AcceptBacklog = maxStreams
	c.KeepAliveInterval = tm.keepalive
	c.ConnectionWriteTimeout = tm.muxWrite
	c.MaxStreamWindowSize = streamWindow
	c.StreamOpenTimeout = tm.open
	c.LogOutput = nil
	c.Logger = muxLog{log}
	return c
}

// muxConn is the connection below a session: a peer that does not read cannot hold its writer, or its Close, for ever, or have this
// side remember more and more answers.
type muxConn struct {
	*tls.Conn
	limit  time.Duration
	frames frames
	guard  guard
}

func (c *muxConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if flood := c.guard.reads(b[:n]); flood != nil {
		return n, flood
	}
	return n, err
}

func (c *muxConn) Write(b []byte) (int, error) {
	if len(c.frames.header) == 0 { // else b is a body
		c.guard.writes(b)
	}
	return c.frames.write(b, func(b []byte) (int, error) {
		c.SetWriteDeadline(time.Now().Add(c.limit))
		return c.Conn.Write(b)
	})
}

func (c *muxConn) Close() error {
	closeConn(c.Conn)
	return nil
}

// muxLog lets yamux log: all of it is about one connection.
type muxLog struct{ log *slog.Logger }

func (l muxLog) Printf(format string, v ...any) { l.say(fmt.Sprintf(format, v...)) }
func (l muxLog) Print(v ...any)                 { l.say(fmt.Sprint(v...)) }
func (l muxLog) Println(v ...any)               { l.say(fmt.Sprintln(v...)) }

func (l muxLog) say(text string) {
	l.log.Log(context.Background(), slog.LevelDebug, "stream session", "text", strings.TrimSpace(text))
}
