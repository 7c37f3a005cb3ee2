// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"cmp"
	"compress/lzw"
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
	// maxSenderPackets limits the packets per second of a member of another group.
	// A member sends at most 8 packets of gossip per second to all others, and
	// pings and answers. Further packets are dropped before they are decoded.
	maxSenderPackets = 256
	// maxSenderStreams limits the streams per second of a member of another group.
	// A member exchanges its state with one other each minute, and once more after a
	// start or an outage. Further streams are closed before they are read.
	maxSenderStreams = 8
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
// It drops a packet, or fails the stream. From the packets and states of a peer
// it removes hearsay. It has no state of one serf instance.
type inspector struct {
	memberlist.NodeAwareTransport
	self     Config              // Name, Advertise and SendPlaintext of this member
	hearsay  *hearsay            // set before run
	keyring  *memberlist.Keyring // nil: gossip is not encrypted
	refusals *refusals

	// stale receives addresses that are not the address of this member, but at
	// which other members list it as alive. Its capacity is 1, in a pool with
	// groups maxReports.
	stale chan staleAddr

	packets chan *memberlist.Packet // accepted packets
	streams chan net.Conn           // accepted streams; *inspectedConn

	pendingState  atomic.Int64 // see maxPendingState
	indirectPings rateLimit

	// Used by run alone.
	packetRates, streamRates senderRates
}

func newInspector(cfg Config, keyring *memberlist.Keyring, r *refusals) *inspector {
	reports := 1
	if cfg.GroupOf != nil {
		reports = maxReports
	}
	return &inspector{
		NodeAwareTransport: cfg.Transport, self: cfg, keyring: keyring, refusals: r, stale: make(chan staleAddr, reports),
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		indirectPings: rateLimit{perSecond: maxIndirectPings},
		packetRates:   newSenderRates(maxSenderPackets, "packets"),
		streamRates:   newSenderRates(maxSenderStreams, "streams"),
	}
}

// senderRates limits what each member of another group sends per second.
type senderRates struct {
	perSecond int
	limits    map[string]*rateLimit
	exceeded  error
}

func newSenderRates(perSecond int, things string) senderRates {
	return senderRates{perSecond, map[string]*rateLimit{},
		refuse(refusedRate, "more than %d %s per second", perSecond, things)}
}

// check counts a packet or a stream of sender. It returns an error if it is above
// the limit.
func (r *senderRates) check(in *inspector, sender string, now time.Time) error {
	if !in.hearsay.enabled() || in.hearsay.believes(sender, in.self.Name) {
		return nil
	}
	l := r.limits[sender]
	if l == nil {
		if len(r.limits) >= maxMembers {
			clear(r.limits)
		}
		l = &rateLimit{perSecond: r.perSecond}
		r.limits[sender] = l
	}
	if !l.allow(now) {
		return r.exceeded
	}
	return nil
}

// run inspects packets, and passes packets and streams on, until stopped is
// closed. It joins the goroutines that close refused streams.
func (in *inspector) run(stopped <-chan struct{}) {
	var closes sync.WaitGroup
	defer closes.Wait()
	for {
		select {
		case <-stopped:
			return
		case p := <-in.NodeAwareTransport.PacketCh():
			sender := p.From.String()
			err := in.packetRates.check(in, sender, time.Now())
			if err != nil {
				p.Buf = nil
			} else {
				p.Buf, err = in.checkPacket(p.Buf, sender)
			}
			if err != nil {
				in.refusals.record(err, "peer", sender)
			}
			if len(p.Buf) == 0 {
				continue
			}
			select {
			case in.packets <- p:
			case <-stopped:
				return
			}
		case c := <-in.NodeAwareTransport.StreamCh():
			sender := c.RemoteAddr().String()
			if err := in.streamRates.check(in, sender, time.Now()); err != nil {
				in.refusals.record(err, "peer", sender)
				closes.Go(func() { c.Close() }) // waits for a peer that does not read, up to its timeout
				continue
			}
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
// if stopped is closed first.
func (in *inspector) inject(stopped <-chan struct{}, packet []byte, from netip.AddrPort) bool {
	select {
	case in.packets <- &memberlist.Packet{Buf: packet, From: net.TCPAddrFromAddrPort(from), Timestamp: time.Now()}:
		return true
	case <-stopped:
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

// checkPacket returns the packet without hearsay, and nothing if all of it is. It
// returns an error unless b is a packet that a server may send. A packet has up
// to three layers, each of which may be absent: encryption, a checksum and
// compression, in this order. Inside is one message or a list of messages.
func (in *inspector) checkPacket(packet []byte, sender string) ([]byte, error) {
	if len(packet) > maxPacket {
		return nil, refuse(refusedLarge, "packet of %d bytes, more than %d", len(packet), maxPacket)
	}
	b, err := in.decrypt(packet, nil)
	if err != nil {
		return nil, err
	}
	sealed := len(b) != len(packet)
	if len(b) >= crcHeader && b[0] == crcMsg {
		b = b[crcHeader:]
	}
	if len(b) > 0 && b[0] == compressMsg {
		content, err := decompress(bytes.NewReader(b[1:]), maxPacket)
		if err != nil {
			return nil, err
		}
		if b, err = io.ReadAll(content); err != nil {
			return nil, cmp.Or(content.err, err)
		}
	}
	in.hearsay.seen(sender, time.Now())
	if len(b) == 0 || b[0] != compoundMsg {
		if pass, err := in.checkMessage(b, sender); !pass {
			return nil, err
		}
		return packet, nil
	}
	messages, err := splitCompound(b[1:])
	if err != nil {
		return nil, err
	}
	var rest [][]byte
	for _, m := range messages {
		pass, err := in.checkMessage(m, sender)
		switch {
		case pass:
			rest = append(rest, m)
		case err != nil && !isForged(err):
			return nil, err
		case err != nil:
			in.refusals.record(err, "peer", sender)
		}
	}
	switch {
	case len(rest) == len(messages):
		return packet, nil
	case len(rest) == 0:
		return nil, nil
	case sealed:
		return in.seal(compoundMessage(rest))
	}
	return compoundMessage(rest), nil
}

// isForged reports whether err refuses one message, and not its packet.
func isForged(err error) bool {
	e, ok := err.(*inputError)
	return ok && e.reason == refusedForged
}

// checkMessage checks the type of one message of a packet. It reports whether
// memberlist may process the message. The filter of the pool checks the content
// of a userMsg.
func (in *inspector) checkMessage(b []byte, sender string) (pass bool, err error) {
	switch {
	case len(b) == 0:
		return false, refuse(refusedMalformed, "empty message")
	case len(b) > maxMessage:
		return false, refuse(refusedLarge, "message of %d bytes, more than %d", len(b), maxMessage)
	}
	switch b[0] {
	case userMsg:
		return in.hearsay.acceptIntent(sender, b[1:]), nil
	case aliveMsg, suspectMsg, deadMsg:
		n := news{State: map[byte]memberlist.NodeStateType{
			aliveMsg: memberlist.StateAlive, suspectMsg: memberlist.StateSuspect, deadMsg: memberlist.StateDead,
		}[b[0]]}
		if err := decode(b, &n); err != nil {
			return false, err
		}
		if n.State == memberlist.StateAlive {
			in.checkOwnAddr(n, sender)
		}
		return in.hearsay.accept(sender, n, time.Now())
	case pingMsg:
		var q question
		if err := decode(b, &q); err != nil {
			return false, err
		}
		return in.hearsay.acceptPing(sender, q, time.Now())
	case indirectPingMsg:
		if !in.indirectPings.allow(time.Now()) {
			return false, refuse(refusedRate, "more than %d indirect pings per second", maxIndirectPings)
		}
		var p indirectPing
		if err := decode(b, &p); err != nil {
			return false, err
		}
		return in.hearsay.acceptIndirectPing(sender, p)
	case ackMsg, nackMsg:
		// memberlist allocates up to 256 KiB for a field that is shorter than it
		// announces.
		m := struct{ SeqNo uint32 }{1}
		if err := decode(b, &m); err != nil {
			return false, err
		}
		if b[0] == ackMsg && m.SeqNo == 0 && in.hearsay.enabled() {
			in.hearsay.acked(sender)
			return false, nil
		}
		return true, nil
	}
	return false, refuse(refusedKind, "message of type %d", b[0])
}

// checkOwnAddr notifies Pool.Run if sender lists this member as alive at an
// address that is not the address of this member. It does not block.
func (in *inspector) checkOwnAddr(n news, sender string) {
	addr, ok := n.addr()
	if n.Node != in.self.Name || !ok || addr == in.advertise() {
		return
	}
	select {
	case in.stale <- staleAddr{addr, n.Incarnation, sender}:
	default:
	}
}

// advertise returns the address of this member in the form of news.addr.
func (in *inspector) advertise() netip.AddrPort {
	return netip.AddrPortFrom(in.self.Advertise.Addr().Unmap(), in.self.Advertise.Port())
}

// encodeMessage encodes a message of memberlist.
func encodeMessage(kind byte, fields any) []byte {
	b := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(b, &codec.MsgpackHandle{}).Encode(fields); err != nil {
		panic(err) // cannot happen: a buffer accepts all bytes
	}
	return b.Bytes()
}

// decode decodes a message after its type.
func decode(message []byte, v any) error {
	if err := decodeBytes(message[1:], v); err != nil {
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

// send sends a message to a member. It does not block.
func (in *inspector) send(to memberlist.Address, message []byte) {
	if packet, err := in.encrypt(message); err == nil {
		_, _ = in.NodeAwareTransport.WriteToAddress(packet, to) // after an error, it is lost like any other packet
	}
}

// encrypt returns the packet of a message that this member sends. The packet is
// plain text if this member sends plain text.
func (in *inspector) encrypt(message []byte) ([]byte, error) {
	if in.keyring == nil || in.self.SendPlaintext {
		return message, nil
	}
	return in.seal(message)
}

// seal encrypts a message, with additional as authenticated data.
func (in *inspector) seal(message []byte, additional ...byte) ([]byte, error) {
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
	return gcm.Seal(packet, packet[1:], message, additional), nil
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
