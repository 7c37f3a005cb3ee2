// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"

	"github.com/wanfed/wanfed/gossip/gossiptest"
)

// readConn is a connection with bytes to read.
type readConn struct {
	net.Conn
	io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.Reader.Read(b) }
func (readConn) RemoteAddr() net.Addr         { return gossiptest.Addr("peer") }

func reasonOf(err error) string {
	switch e := err.(type) {
	case nil:
		return ""
	case *inputError:
		return e.reason
	}
	return err.Error()
}

func FuzzCheckPacket(f *testing.F) {
	key := bytes.Repeat([]byte{1}, 16)
	keyring, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{ackMsg, 0x80})
	f.Add(compound([][]byte{{ackMsg, 0x80}, shortIntent("a.x")}))
	f.Add(compressed(compound([][]byte{{ackMsg, 0x80}})))
	f.Add(append([]byte{crcMsg, 0, 0, 0, 0}, compressed([]byte{pingMsg})...))
	f.Add(sealed(key, 1, []byte{ackMsg, 0x80}, nil))
	f.Fuzz(func(_ *testing.T, b []byte) {
		for _, k := range []*memberlist.Keyring{nil, keyring} {
			in := newInspector(Config{}, k, nil)
			_, _ = in.checkPacket(b, "a.x")
			_, _ = in.checkPacket(sealed(key, 1, b, nil), "a.x")
		}
	})
}

func FuzzInspectedConn(f *testing.F) {
	f.Add(state(2, 2, "n", []byte{stateType}))
	f.Add(compressed(state(2, 2, "n", []byte{stateType})))
	f.Add(encoded(struct{ SeqNo int }{7}, pingMsg))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := newInspector(Config{}, nil, newRefusals(slog.New(slog.DiscardHandler)))
		c := &inspectedConn{Conn: readConn{Reader: bytes.NewReader(b)}, in: in, accepted: true}
		got, err := io.ReadAll(c)
		if err == nil && !bytes.HasPrefix(b, got) {
			t.Errorf("memberlist reads % x, want a beginning of % x", got, b)
		}
	})
}

func FuzzCheckIntent(f *testing.F) {
	f.Add(shortIntent("a.x")[1:])
	f.Add(encoded(leaveMessage{1 << 40, "b", true}, leaveType))
	f.Fuzz(func(_ *testing.T, b []byte) {
		x := &filter{
			isMember: func(string) bool { return false }, members: func() []serf.Member { return nil },
			intents: rateLimit{perSecond: maxIntents},
			unknown: map[string]bool{}, refusals: newRefusals(slog.New(slog.DiscardHandler)),
		}
		_ = x.checkIntent(b)
		_, _ = x.checkState(b)
	})
}
