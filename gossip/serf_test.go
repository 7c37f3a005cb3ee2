// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/slogadapter"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// memberlist counts the messages in a ping packet in one byte, and the peer
// drops a ping whose count overflowed. Therefore a ping must have space for at
// most 254 of the shortest messages.
func TestPacketSize_PingCannotOverflow(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var n gossiptest.Network
		var log lockedLog
		wan := func(c *Config) { c.Kind, c.Logger = wanfed.PoolWAN, slog.New(slog.NewTextHandler(&log, nil)) }
		a, b := newNode(t, &n, "a.x", wan), newNode(t, &n, "b.x", wan)
		if err := a.Join(t.Context(), b.addr()); err != nil {
			t.Fatal(err)
		}
		count := 0
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			var intents [][]byte
			for range 200 { // servers that join at the same time
				count++
				name := []byte{'!' + byte(count/8100%90), '!' + byte(count/90%90), '!' + byte(count%90), '.', 'x'}
				intents = append(intents, shortIntent(string(name)))
			}
			n.Transport("a.x").Deliver(compound(intents), "b")
		}
		if text := log.String(); strings.Contains(text, "level=ERROR") ||
			!strings.Contains(text, "Intent queue depth") {
			t.Errorf("log = %.2000s, want a long intent queue and no error", text)
		}
		a.stop()
		b.stop()
	})
}

// shortIntent returns the shortest message of serf, a join, as a message of
// memberlist.
func shortIntent(name string) []byte {
	b := append([]byte{userMsg, joinType, 0x82, 0xa5}, "LTime\x01\xa4Node"...)
	return append(append(b, 0xa0|byte(len(name))), name...)
}

// compound returns a compound message of memberlist that contains messages.
func compound(messages [][]byte) []byte {
	b := []byte{compoundMsg, byte(len(messages))}
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	}
	return append(b, bytes.Join(messages, nil)...)
}

// lockedLog is a log that several goroutines may write.
type lockedLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestEditLibraryRecord(t *testing.T) {
	var b strings.Builder
	log := slogadapter.Std(slog.New(slogadapter.Filter(slog.NewTextHandler(&b, nil), editLibraryRecord)), "memberlist")
	log.Print("[WARN] memberlist: Binding to public address without encryption!")
	log.Printf("[ERR] memberlist: Failed to send gossip to 10.0.0.5:8300: %s", net.ErrClosed)
	log.Print("[WARN] memberlist: Was able to connect to srv1.dc2 over TCP but UDP probes failed, network may be ...")
	log.Print("[WARN] memberlist: Refuting an alive message for 'srv1' (10.0.0.5:8300) meta:([255 222] VS [255])")
	log.Print("[WARN] memberlist: another")
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "another") {
		t.Errorf("log = %q, want the last message alone", got)
	}
	r := slog.Record{
		Message: "memberlist: Refuting an alive message for 'srv1' (10.0.0.5:8300) meta:([255 222] VS [255])",
	}
	if want := "memberlist: Refuting an alive message for 'srv1' (10.0.0.5:8300)"; !editLibraryRecord(&r) ||
		r.Message != want {
		t.Errorf("message = %q, want %q", r.Message, want)
	}
}

// TestLibraryLogger_LimitsRate checks that a peer that sends rejected packets
// does not fill the log.
func TestLibraryLogger_LimitsRate(t *testing.T) {
	var b lockedLog
	p := &Pool{cfg: Config{Logger: slog.New(slog.NewTextHandler(&b, nil))}}
	for range 2 { // serf and memberlist, or a rejoin
		log := slogadapter.Std(p.libraryLogger(), "memberlist")
		for i := range 1000 {
			log.Printf("[WARN] memberlist: ignoring alive message for '%d': too many members", i)
			log.Printf("[ERR] memberlist: Push/Pull with s%d failed: EOF", i)
		}
		log.Print("[ERR] Failed to shutdown transport: EOF")
	}
	if n := strings.Count(b.String(), "\n"); n != 3 {
		t.Errorf("log has %d lines, want one of each kind:\n%.2000s", n, b.String())
	}
	for i := range 1000 {
		p.libraryLines.allow(strings.Repeat("x", i))
	}
	if n := len(p.libraryLines.kinds); n > maxLineKinds {
		t.Errorf("limiter has %d kinds, want at most %d", n, maxLineKinds)
	}
}
