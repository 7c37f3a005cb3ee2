// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"io"
	"net"
	"time"

	"github.com/hashicorp/memberlist"
)

// ownStateTimeout limits one reading of the state of this member, in which memberlist
// encodes the states of all members.
const ownStateTimeout = 2 * time.Second

// readOwnState reads the state of this member from memberlist, which has no other
// way to get its incarnation: it exchanges states with memberlist as a peer
// without members. ok is false if memberlist stops or stopped is closed.
func (in *inspector) readOwnState(stopped <-chan struct{}) (own memberState, ok bool) {
	near, far := net.Pipe()
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(ownStateTimeout))
	timeout := time.NewTimer(ownStateTimeout)
	defer timeout.Stop()
	select {
	case in.streams <- far:
	case <-timeout.C:
		return own, false
	case <-stopped:
		return own, false
	}
	request := encodeState(nil, nil, false)
	if in.keyring != nil {
		sealed, err := in.sealStream(request)
		if err != nil {
			return own, false
		}
		request = sealed
	}
	if _, err := near.Write(request); err != nil {
		return own, false
	}
	b, err := io.ReadAll(near)
	if err != nil || len(b) == 0 {
		return own, false
	}
	const head = 5 // type and length of an encrypted message
	if b[0] == encryptMsg && len(b) > head {
		if b, err = in.decrypt(b[head:], b[:head]); err != nil || len(b) == 0 {
			return own, false
		}
	}
	if b[0] != pushPullMsg {
		return own, false
	}
	var header stateHeader
	d := decoder(bytes.NewReader(b[1:]))
	if d.Decode(&header) != nil {
		return own, false
	}
	for range header.Nodes {
		var m memberState
		if d.Decode(&m) != nil {
			return own, false
		}
		if m.Name == in.self.Name {
			return m, true
		}
	}
	return own, false
}

// ownChanged makes the next answer read the state of this member again.
func (h *hearsay) ownChanged() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = time.Now()
}

// readOwn reads the state of this member from memberlist, unless the last
// reading is recent. Only run calls it.
func (h *hearsay) readOwn(now time.Time, stopped <-chan struct{}) {
	h.mu.Lock()
	current := now.Sub(h.ownRead) < ownAliveAge && (h.changed.After(now) || h.ownRead.After(h.changed))
	h.mu.Unlock()
	if current {
		return
	}
	own, ok := h.pool.inspector.readOwnState(stopped)
	if !ok {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own, h.ownRead = own, now
}

// memberState is a member in a state of memberlist.
type memberState struct {
	Name        string
	Addr        []byte
	Port        uint16
	Meta        []byte
	Incarnation uint32
	State       memberlist.NodeStateType
	Vsn         []uint8
}

// alive returns the alive message of the member, or nil if it is not alive.
func (s memberState) alive() []byte {
	if s.Name == "" || s.State != memberlist.StateAlive {
		return nil
	}
	return encodeMessage(aliveMsg, aliveMessage{s.Incarnation, s.Name, s.Addr, s.Port, s.Meta, s.Vsn})
}
