// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// echo is what a link's connection knows about its peer's life. While an answer is awaited, the connection has a read
// deadline; else nothing needs to come.
type echo struct {
	mu       sync.Mutex
	asked    time.Duration // the last echo asked for: when, after the connection began
	awaited  bool          // the answer to it
	answered time.Time     // when an answer last came; zero: never
}

// asks is called before an echo is asked for. The reader gives up on a peer that said nothing for silence, if by then it had
// an echo to answer for longer than silence without one echoEvery.
func (lc *linkConn) asks(asked time.Duration, now time.Time) {
	tm := lc.l.t.tm
	lc.echoed = now
	late := 2 * lc.l.t.cfg.Dialer.patience(lc.path)
	lc.echo.mu.Lock()
	defer lc.echo.mu.Unlock()
	lc.echo.asked = asked
	if lc.echo.awaited {
		return
	}
	lc.echo.awaited = true
	lc.late.Reset(late)
	limit := now.Add(tm.silence - tm.echoEvery)
	heard := lc.echo.answered
	if heard.IsZero() {
		heard = lc.began
	}
	if l := heard.Add(tm.silence); l.After(limit) {
		limit = l
	}
	lc.c.SetReadDeadline(limit) // does not wait, and must not come after the one of answers
}

// isLate says whether an answer is awaited of a peer that gave answers before.
func (e *echo) isLate() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.awaited && !e.answered.IsZero()
}

// last is when an answer last came; zero: never.
func (e *echo) last() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.answered
}

// answers is called when the answer to the echo of asked has come.
func (lc *linkConn) answers(asked time.Duration, now time.Time) {
	lc.echo.mu.Lock()
	defer lc.echo.mu.Unlock()
	lc.echo.answered = now
	var limit time.Time
	if lc.echo.awaited = asked < lc.echo.asked; lc.echo.awaited {
		limit = now.Add(lc.l.t.tm.silence)
	}
	lc.c.SetReadDeadline(limit)
}

// read takes the echoes until the connection ends, and says why it did.
func (lc *linkConn) read() error {
	if lc.consul {
		n, err := lc.c.Read(make([]byte, 1))
		if n > 0 {
			return errors.New("peer sent data where none may come")
		}
		return lc.ended(err)
	}
	br := bufio.NewReaderSize(lc.c, 512)
	var b [frameHeadLen + echoLen]byte
	for {
		if _, err := io.ReadFull(br, b[:]); err != nil {
			if isTimeout(err) {
				return fmt.Errorf("%w for %v", errSilent, lc.l.t.tm.silence)
			}
			return lc.ended(err)
		}
		f, err := decodeFrame(b[:])
		if err != nil || f.pool != poolEcho {
			return fmt.Errorf("peer sent something else than an echo: %w", errors.Join(err, errFramePool))
		}
		now := time.Now()
		age, sent := now.Sub(lc.began), time.Duration(binary.BigEndian.Uint64(f.packet))
		if sent < 0 || sent > age {
			return errors.New("peer sent an echo of something else")
		}
		lc.answers(sent, now)
		lc.l.up(lc.path, lc.began, age-sent)
		lc.l.t.cfg.Dialer.echoed(lc.path, age-sent)
	}
}
