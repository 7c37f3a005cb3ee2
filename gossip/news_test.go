// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
)

// TestNewsThatOnePingCarries: memberlist counts in one byte what travels with a ping, and the peer throws away, ping and all, what was
// counted wrong. So no ping may have room for more than 254 of the shortest news.
func TestNewsThatOnePingCarries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n network
		var log lockedLog
		wan := func(c *Config) { c.Kind, c.Logger = WAN, slog.New(slog.NewTextHandler(&log, nil)) }
		a, b := newNode(t, &n, "a.x", nil, wan), newNode(t, &n, "b.x", nil, wan)
		if err := a.Join(t.Context(), b.addr()); err != nil {
			t.Fatal(err)
		}
		news := 0
		for end := time.Now().Add(40 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			var intents [][]byte
			for range 200 { // as when so many servers join in the same moment
				news++
				intents = append(intents, joinIntent(string([]byte{'!' + byte(news/8100%90), '!' + byte(news/90%90), '!' + byte(news%90), '.', 'x'})))
			}
			n.byName["a.x"].packets <- &memberlist.Packet{Buf: compound(intents), From: wireAddr("b"), Timestamp: time.Now()}
		}
		if text := log.String(); strings.Contains(text, "level=ERROR") || !strings.Contains(text, "Intent queue depth") {
			t.Errorf("a packet was counted wrong, or there was no news to speak of:\n%.2000s", text)
		}
		a.stop()
		b.stop()
	})
}

// joinIntent is serf's shortest message, in memberlist's wrapping: somebody joins.
func joinIntent(name string) []byte {
	const userMsg, joinType = 8, 1
	b := append([]byte{userMsg, joinType, 0x82, 0xa5}, "LTime\x01\xa4Node"...)
	return append(append(b, 0xa0|byte(len(name))), name...)
}

// compound is many of memberlist's messages in one.
func compound(messages [][]byte) []byte {
	const compoundMsg = 7
	b := []byte{compoundMsg, byte(len(messages))}
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	}
	return append(b, bytes.Join(messages, nil)...)
}

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
