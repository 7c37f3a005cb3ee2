// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// inspectedConn is a stream of memberlist. The first Read reads the whole
// message of the peer, within the limits, and checks it. The deadlines that
// memberlist sets limit the wait. A stream has one message in each direction.
type inspectedConn struct {
	net.Conn
	in       *inspector
	accepted bool // counts in inspector.pendingState

	inspected bool
	message   bytes.Buffer // bytes of the peer that memberlist has not read
	rewritten []byte       // message without hearsay; nil: it has none
	sealed    bool         // the message is encrypted
	err       error        // result of the inspection
	held      atomic.Int64 // part of inspector.pendingState
}

func (c *inspectedConn) Read(b []byte) (int, error) {
	if !c.inspected {
		c.inspected = true
		c.err = c.inspect()
		if _, refused := c.err.(*inputError); refused {
			c.in.refusals.record(c.err, "peer", c.RemoteAddr().String())
		}
	}
	if c.err != nil {
		return 0, c.err
	}
	return c.message.Read(b)
}

// Close also releases the memory that the state was counted with.
func (c *inspectedConn) Close() error {
	c.in.pendingState.Add(-c.held.Swap(0))
	return c.Conn.Close()
}

// hold counts n bytes of memory until Close.
func (c *inspectedConn) hold(n int) error {
	if !c.accepted {
		return nil
	}
	c.held.Add(int64(n))
	if c.in.pendingState.Add(int64(n)) > maxPendingState {
		return refuse(refusedBusy, "concurrent state exchanges have more than %d bytes", maxPendingState)
	}
	return nil
}

// inspect reads and checks the message of the peer. An error of the connection
// is returned as it is.
func (c *inspectedConn) inspect() error {
	r := &limitedReader{r: io.TeeReader(c.Conn, &c.message), limit: maxState, hold: c.hold}
	err := c.checkStream(bufio.NewReader(r))
	if err = cmp.Or(r.err, err); err != nil || c.rewritten == nil {
		return err
	}
	message := c.rewritten
	if c.sealed {
		if message, err = c.in.sealStream(message); err != nil {
			return err
		}
	}
	c.message.Reset()
	c.message.Write(message)
	return nil
}

// sealStream encrypts a message of a stream.
func (in *inspector) sealStream(message []byte) ([]byte, error) {
	head := binary.BigEndian.AppendUint32([]byte{encryptMsg}, uint32(minSealed+len(message)))
	sealed, err := in.seal(message, head...)
	return append(head, sealed...), err
}

// checkStream checks a message that may be encrypted.
func (c *inspectedConn) checkStream(r *bufio.Reader) error {
	first, err := r.Peek(1)
	if err != nil {
		return err
	}
	if first[0] != encryptMsg || c.in.keyring == nil {
		return c.checkPlainStream(r)
	}
	var head [5]byte // the type, and the length of the rest
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length > maxState {
		return refuse(refusedLarge, "state of %d bytes, more than %d", length, maxState)
	}
	var sealed bytes.Buffer
	if _, err := io.CopyN(&sealed, r, int64(length)); err != nil {
		return err
	}
	plain, err := c.in.decrypt(sealed.Bytes(), head[:])
	if err != nil || len(plain) == sealed.Len() {
		return err // not decrypted: memberlist refuses it
	}
	c.sealed = true
	if err := c.hold(len(plain)); err != nil {
		return err
	}
	return c.checkPlainStream(bufio.NewReader(bytes.NewReader(plain)))
}

// checkPlainStream checks a message that is not encrypted and may be
// compressed.
func (c *inspectedConn) checkPlainStream(r *bufio.Reader) error {
	kind, err := r.ReadByte()
	switch {
	case err != nil:
		return err
	case kind != compressMsg:
		return c.checkContent(kind, r)
	}
	plain, err := decompress(r, maxState)
	if err != nil {
		return err
	}
	plain.hold = func(n int) error { return c.hold(2 * n) } // the buffer of memberlist grows by its size
	content := bufio.NewReader(plain)
	kind, err = content.ReadByte()
	if err == nil {
		err = c.checkContent(kind, content)
	}
	if err == nil {
		if _, end := content.Peek(1); end == nil {
			err = refuse(refusedMalformed, "bytes after a compressed message of type %d", kind)
		}
	}
	return cmp.Or(plain.err, err)
}

// checkContent checks a message of type kind, of which r has the rest.
func (c *inspectedConn) checkContent(kind byte, r io.Reader) error {
	switch kind {
	case pushPullMsg:
		return c.checkState(r)
	case pingMsg, ackMsg, errorMsg:
		if err := decoder(io.LimitReader(r, maxReply)).Decode(&struct{}{}); err != nil {
			return refuse(refusedMalformed, "message of type %d: %v", kind, err)
		}
		return nil
	}
	return refuse(refusedKind, "stream with a message of type %d", kind)
}

// checkState checks the members of a state. The filter of the pool checks the
// rest, which is serf's.
func (c *inspectedConn) checkState(r io.Reader) error {
	var header stateHeader
	d := decoder(r)
	if err := d.Decode(&header); err != nil {
		return refuse(refusedMalformed, "state: %v", err)
	}
	if header.Nodes < 0 || header.Nodes > maxMembers {
		return refuse(refusedNames, "state of %d members, more than %d", header.Nodes, maxMembers)
	}
	if header.UserStateLen < 0 || header.UserStateLen > maxUserState {
		return refuse(refusedLarge, "state of serf of %d bytes, more than %d", header.UserStateLen, maxUserState)
	}
	sender, now := "", time.Now()
	if c.in.hearsay.enabled() {
		sender = c.RemoteAddr().String()
		c.in.hearsay.seen(sender, now)
	}
	var kept []memberState
	for range header.Nodes {
		var m memberState
		if err := d.Decode(&m); err != nil {
			return refuse(refusedMalformed, "member in a state: %v", err)
		}
		if len(m.Name) > maxMemberName {
			return refuse(refusedNames, "member with a name of %d bytes, more than %d", len(m.Name), maxMemberName)
		}
		if err := c.hold(nodeCost); err != nil {
			return err
		}
		n := news{m.Incarnation, m.Name, m.Addr, m.Port, m.Meta, m.Vsn, m.State}
		if m.State == memberlist.StateAlive {
			c.in.checkOwnAddr(n, sender)
		}
		pass, err := c.in.hearsay.accept(sender, n, now)
		if err != nil {
			c.in.refusals.record(err, "peer", sender)
		}
		if pass && c.in.hearsay.enabled() {
			kept = append(kept, m)
		}
	}
	if !c.in.hearsay.enabled() {
		_, err := io.CopyN(io.Discard, r, int64(header.UserStateLen))
		return err
	}
	user := make([]byte, 0, min(header.UserStateLen, 4<<10))
	content := bytes.NewBuffer(user)
	if _, err := io.CopyN(content, r, int64(header.UserStateLen)); err != nil {
		return err
	}
	c.rewritten = encodeState(kept, c.in.hearsay.withoutOthers(sender, content.Bytes()), header.Join)
	return nil
}

// stateHeader begins a state. Its members and the state of serf follow.
type stateHeader struct {
	Nodes, UserStateLen int
	Join                bool
}

// encodeState encodes a state as memberlist does.
func encodeState(members []memberState, user []byte, join bool) []byte {
	b := bytes.NewBuffer(encodeMessage(pushPullMsg, stateHeader{len(members), len(user), join}))
	e := codec.NewEncoder(b, &codec.MsgpackHandle{})
	for _, m := range members {
		if err := e.Encode(m); err != nil {
			panic(err) // cannot happen: a buffer accepts all bytes
		}
	}
	return append(b.Bytes(), user...)
}
