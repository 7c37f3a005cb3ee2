// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/lzw"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"

	"github.com/wanfed/wanfed/wanfed"
)

// Limits of the input of a pool. memberlist's own limits are far above what
// servers send: it decompresses a packet of 30 KB to 40 MB.
const (
	// maxPacket limits a packet before and after decompression, in bytes.
	maxPacket = wanfed.MaxPacket
	// maxMessage limits one of the messages of a packet. memberlist queues
	// thousands of them. A member with the longest name and tags fits twice.
	maxMessage = 2 << 10
	// maxState limits a message of a stream before and after decompression. The
	// state of 10,000 members fits.
	maxState = 4 << 20
	// maxPendingState limits the memory for the states of all accepted streams.
	// A compressed state of the maximum size fits.
	maxPendingState = 4 * maxState
	// maxUserState limits serf's part of a state.
	maxUserState = 1 << 20
	// maxReply limits a message of a stream that is not a state.
	maxReply = 4 << 10
	// nodeCost is the memory of an empty member in a state, in bytes.
	nodeCost = 256
	// maxMemberName limits the name of a member: <node>.<dc>.
	maxMemberName = wanfed.MaxName + 1 + wanfed.MaxName
	// maxIndirectPings limits the indirect pings per second. memberlist starts
	// a goroutine for each. A member receives about one per second.
	maxIndirectPings = 256
)

// Types of memberlist's messages.
const (
	pingMsg byte = iota
	indirectPingMsg
	ackMsg
	suspectMsg
	aliveMsg
	deadMsg
	pushPullMsg
	compoundMsg
	userMsg
	compressMsg
	encryptMsg
	nackMsg
	crcMsg
	errorMsg
)

// Sizes in bytes of memberlist's encodings.
const (
	crcHeader = 5 // type and checksum
	nonceSize = 12
	minSealed = 1 + nonceSize + 16 // version, nonce and tag
)

// inspector checks packets and streams of a pool before memberlist reads them.
// It changes nothing: it drops a packet, or fails the stream. It has no state
// of one serf instance.
type inspector struct {
	memberlist.NodeAwareTransport
	self     Config              // Name, Advertise and SendPlaintext of this member
	keyring  *memberlist.Keyring // nil: gossip is not encrypted
	refusals *refusals

	// stale receives addresses that are not the address of this member, but at
	// which other members list it as alive. Its capacity is 1.
	stale chan staleAddr

	packets chan *memberlist.Packet // accepted packets
	streams chan net.Conn           // accepted streams; *inspectedConn

	pendingState  atomic.Int64 // see maxPendingState
	indirectPings rateLimit
}

func newInspector(cfg Config, keyring *memberlist.Keyring, r *refusals) *inspector {
	return &inspector{
		NodeAwareTransport: cfg.Transport, self: cfg, keyring: keyring, refusals: r, stale: make(chan staleAddr, 1),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		indirectPings: rateLimit{perSecond: maxIndirectPings},
	}
}

// run inspects packets, and passes packets and streams on, until stopped is
// closed.
func (in *inspector) run(stopped <-chan struct{}) {
	for {
		select {
		case <-stopped:
			return
		case p := <-in.NodeAwareTransport.PacketCh():
			if err := in.checkPacket(p.Buf); err != nil {
				in.refusals.record(err, "peer", p.From.String())
				continue
			}
			select {
			case in.packets <- p:
			case <-stopped:
				return
			}
		case c := <-in.NodeAwareTransport.StreamCh():
			select {
			case in.streams <- &inspectedConn{Conn: c, in: in, accepted: true}:
			case <-stopped:
				c.Close()
				return
			}
		}
	}
}

// inject passes a packet to memberlist as if from had sent it. It returns false
// if ctx ends first.
func (in *inspector) inject(ctx context.Context, packet []byte, from netip.AddrPort) bool {
	select {
	case in.packets <- &memberlist.Packet{Buf: packet, From: net.TCPAddrFromAddrPort(from), Timestamp: time.Now()}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (in *inspector) PacketCh() <-chan *memberlist.Packet { return in.packets }
func (in *inspector) StreamCh() <-chan net.Conn           { return in.streams }

func (in *inspector) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	c, err := in.NodeAwareTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	return &inspectedConn{Conn: c, in: in}, nil
}

// checkPacket returns an error unless b is a packet that a server may send. A
// packet has up to three layers, each of which may be absent: encryption, a
// checksum and compression, in this order. Inside is one message or a list of
// messages.
func (in *inspector) checkPacket(b []byte) error {
	if len(b) > maxPacket {
		return refuse(refusedLarge, "packet of %d bytes, more than %d", len(b), maxPacket)
	}
	b, err := in.decrypt(b, nil)
	if err != nil {
		return err
	}
	if len(b) >= crcHeader && b[0] == crcMsg {
		b = b[crcHeader:]
	}
	if len(b) > 0 && b[0] == compressMsg {
		content, err := decompress(bytes.NewReader(b[1:]), maxPacket)
		if err != nil {
			return err
		}
		if b, err = io.ReadAll(content); err != nil {
			return cmp.Or(content.err, err)
		}
	}
	if len(b) == 0 || b[0] != compoundMsg {
		return in.checkMessage(b)
	}
	messages, err := splitCompound(b[1:])
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := in.checkMessage(m); err != nil {
			return err
		}
	}
	return nil
}

// checkMessage checks the type of one message of a packet. The filter of the
// pool checks the content of a userMsg.
func (in *inspector) checkMessage(b []byte) error {
	switch {
	case len(b) == 0:
		return refuse(refusedMalformed, "empty message")
	case len(b) > maxMessage:
		return refuse(refusedLarge, "message of %d bytes, more than %d", len(b), maxMessage)
	}
	switch b[0] {
	case userMsg:
		return nil
	case aliveMsg:
		var m struct {
			Incarnation uint32
			Node        string
			Addr        []byte
			Port        uint16
		}
		if err := decodeBytes(b[1:], &m); err != nil {
			return refuse(refusedMalformed, "message of type %d: %v", b[0], err)
		}
		in.checkOwnAddr(m.Node, m.Addr, m.Port, m.Incarnation)
		return nil
	case pingMsg, ackMsg, nackMsg, suspectMsg, deadMsg:
		return complete(b)
	case indirectPingMsg:
		if !in.indirectPings.allow(time.Now()) {
			return refuse(refusedRate, "more than %d indirect pings per second", maxIndirectPings)
		}
		return complete(b)
	}
	return refuse(refusedKind, "message of type %d", b[0])
}

// checkOwnAddr notifies Pool.Run if another member lists this member as alive
// at an address that is not the address of this member. It does not block.
func (in *inspector) checkOwnAddr(name string, ip []byte, port uint16, incarnation uint32) {
	addr, ok := netip.AddrFromSlice(ip)
	if name != in.self.Name || !ok {
		return
	}
	stale := netip.AddrPortFrom(addr.Unmap(), port)
	if stale == netip.AddrPortFrom(in.self.Advertise.Addr().Unmap(), in.self.Advertise.Port()) {
		return
	}
	select {
	case in.stale <- staleAddr{stale, incarnation}:
	default:
	}
}

// complete returns an error unless the fields of a message are as long as they
// announce. memberlist allocates up to 256 KiB for a field that is not.
func complete(message []byte) error {
	if err := decodeBytes(message[1:], &struct{}{}); err != nil {
		return refuse(refusedMalformed, "message of type %d: %v", message[0], err)
	}
	return nil
}

// splitCompound returns the messages of a compound message without its type:
// their number in a byte, their lengths in two bytes each, and the messages.
func splitCompound(b []byte) ([][]byte, error) {
	if len(b) == 0 || len(b) < 1+2*int(b[0]) {
		return nil, refuse(refusedMalformed, "compound message without its lengths")
	}
	n := int(b[0])
	lengths, rest := b[1:1+2*n], b[1+2*n:]
	messages := make([][]byte, n)
	for i := range messages {
		length := int(binary.BigEndian.Uint16(lengths[2*i:]))
		if length > len(rest) {
			return nil, refuse(refusedMalformed, "compound message is truncated")
		}
		messages[i], rest = rest[:length], rest[length:]
	}
	return messages, nil
}

// decrypt returns the plain text of b, or b if no key decrypts it. memberlist
// then decides whether b may be plain text. Version 0 of the encryption, which
// servers do not use, has a padding that can crash memberlist.
func (in *inspector) decrypt(b, additional []byte) ([]byte, error) {
	if in.keyring == nil || len(b) < minSealed || b[0] > 1 {
		return b, nil
	}
	for _, key := range in.keyring.GetKeys() {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return nil, err
		}
		plain, err := gcm.Open(nil, b[1:1+nonceSize], b[1+nonceSize:], additional)
		switch {
		case err != nil:
			continue
		case b[0] == 0:
			return nil, refuse(refusedMalformed, "encryption of version 0")
		case len(plain) == 0:
			return nil, refuse(refusedMalformed, "encrypted message is empty")
		}
		return plain, nil
	}
	return b, nil
}

// encrypt returns the packet of a message that this member sends. The packet is
// plain text if this member sends plain text.
func (in *inspector) encrypt(message []byte) ([]byte, error) {
	if in.keyring == nil || in.self.SendPlaintext {
		return message, nil
	}
	block, err := aes.NewCipher(in.keyring.GetPrimaryKey())
	if err != nil {
		return nil, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	const version = 1
	packet := make([]byte, 1+nonceSize, minSealed+len(message))
	packet[0] = version
	rand.Read(packet[1:]) // never fails
	return gcm.Seal(packet, packet[1:], message, nil), nil
}

// decompress returns a reader of at most limit bytes of the content of a
// compressed message, of which r has all but its type.
func decompress(r io.Reader, limit int) (*limitedReader, error) {
	var m struct {
		Algo uint8
		Buf  []byte
	}
	if err := decoder(r).Decode(&m); err != nil {
		return nil, refuse(refusedMalformed, "compressed message: %v", err)
	}
	const lzwAlgorithm = 0
	if m.Algo != lzwAlgorithm {
		return nil, refuse(refusedMalformed, "compressed by the unknown algorithm %d", m.Algo)
	}
	return &limitedReader{r: lzw.NewReader(bytes.NewReader(m.Buf), lzw.LSB, 8), limit: limit}, nil
}

// limitedReader refuses more than limit bytes of r.
type limitedReader struct {
	r     io.Reader
	limit int
	hold  func(n int) error // called for each n bytes; nil: not called

	n   int
	err error // refusal, or error of r except io.EOF; a decoder does not wrap it
}

func (l *limitedReader) Read(b []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	n, err := l.r.Read(b)
	if l.n += n; l.n > l.limit {
		l.err = refuse(refusedLarge, "message of more than %d bytes", l.limit)
	} else if l.hold != nil {
		l.err = l.hold(n)
	}
	if l.err == nil && err != io.EOF {
		l.err = err
	}
	if l.err != nil {
		return 0, l.err
	}
	return n, err
}

// handle limits the bytes that a decoder allocates before they arrive.
var handle = func() *codec.MsgpackHandle {
	var h codec.MsgpackHandle
	h.MaxInitLen = 4 << 10
	return &h
}()

func decoder(r io.Reader) *codec.Decoder { return codec.NewDecoder(r, handle) }

func decodeBytes(b []byte, v any) error { return codec.NewDecoderBytes(b, handle).Decode(v) }

// inspectedConn is a stream of memberlist. The first Read reads the whole
// message of the peer, within the limits, and checks it. The deadlines that
// memberlist sets limit the wait. A stream has one message in each direction.
type inspectedConn struct {
	net.Conn
	in       *inspector
	accepted bool // counts in inspector.pendingState

	inspected bool
	message   bytes.Buffer // bytes of the peer that memberlist has not read
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
	return cmp.Or(r.err, err)
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
	var header struct{ Nodes, UserStateLen int }
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
	for range header.Nodes {
		var m struct {
			Name        string
			Addr        []byte
			Port        uint16
			Incarnation uint32
			State       memberlist.NodeStateType
		}
		if err := d.Decode(&m); err != nil {
			return refuse(refusedMalformed, "member in a state: %v", err)
		}
		if len(m.Name) > maxMemberName {
			return refuse(refusedNames, "member with a name of %d bytes, more than %d", len(m.Name), maxMemberName)
		}
		if err := c.hold(nodeCost); err != nil {
			return err
		}
		if m.State == memberlist.StateAlive {
			c.in.checkOwnAddr(m.Name, m.Addr, m.Port, m.Incarnation)
		}
	}
	_, err := io.CopyN(io.Discard, r, int64(header.UserStateLen))
	return err
}

// rateLimit limits events per second. It is safe for concurrent use.
type rateLimit struct {
	perSecond int

	mu    sync.Mutex
	since time.Time // start of the current second
	count int       // events in the current second
}

// allow counts an event and reports whether it is within the limit.
func (l *rateLimit) allow(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= time.Second {
		l.since, l.count = now, 0
	}
	l.count++
	return l.count <= l.perSecond
}
