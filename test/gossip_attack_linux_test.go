// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bytes"
	"compress/lzw"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/yamux"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// attackMemory is the memory that an attack may take from a server, in addition
// to half of its memory before.
const attackMemory = 64 << 20

// maxAttackLines is the number of warnings that a server may log during an
// attack, and ten times the number per second.
const maxAttackLines = 100

// TestGossipAttack sends gossip with the certificate of a server of dc3 to the
// servers of all datacenters: compression bombs, user events, intents, forged
// members and random bytes. The memory of the servers must stay bounded, and the
// servers of dc1 and dc2 must list the members of dc1 and dc2 as before, at all
// times.
// WANFED_ATTACK_TIME is the duration of the attack, by default 22 s: a server reads
// 256 packets in each second, and drops all packets of a mode that lasts less than
// a second if the mode before has used up that number.
func TestGossipAttack(t *testing.T) {
	duration := envDuration(t, "WANFED_ATTACK_TIME", 22*time.Second)
	l := newLoopback(t)
	l.log = "info"
	dc1 := l.start("dc1", "dc1")
	sites := []*site{dc1, l.start("dc2", "dc1", dc1.gateway.WAN), l.start("dc3", "dc1", dc1.gateway.WAN)}
	l.federated(sites...)
	limits := map[*site]int{}
	for _, s := range sites {
		limits[s] = rssOf(t, s)*3/2 + attackMemory
	}
	watch := watchMembers(t, sites[:2])
	modes := []string{"bomb", "event", "event names", "intents", "prune", "leave", "clock", "states", "large packets",
		"alive", "address", "suspect", "dead", "left", "leave and left", "ping", "random", "invented"}
	for _, mode := range modes {
		worst := attack(t, l, sites, mode, duration/time.Duration(len(modes)))
		for _, s := range sites {
			t.Logf("%-13s %s: %3d MB at most, %3d MB allowed", mode, s.dc, worst[s]>>20, limits[s]>>20)
			if worst[s] > limits[s] {
				t.Errorf("%s: memory of %s = %d MB, want at most %d MB", mode, s.dc, worst[s]>>20, limits[s]>>20)
			}
		}
		watch.check(t, mode)
	}
	watch.stop()
	watch.check(t, "end")
	l.federated(sites...)
	for reason, s := range map[string]*site{
		"too_large": dc1, "message": dc1, "prune": sites[1], "names": sites[1], "clock": sites[2], "forged": dc1,
	} {
		series := fmt.Sprintf(`wanfed_gossip_refused_total{pool="wan",reason=%q}`, reason)
		testutil.Await(t, waitLimit, series+" of "+s.dc, func(context.Context) error {
			if metric(t, s.server.HTTP, series) == 0 {
				return errors.New("the counter is 0, want more")
			}
			return nil
		})
		logOf(s.server.Process).await(t, `level=WARN msg="gossip refused".* pool=wan .*reason=`+reason)
		if doc := readDoc(t, "limits.md"); !strings.Contains(doc, "`"+reason+"`") {
			t.Errorf("limits.md does not name %s", reason)
		}
	}
	for _, s := range sites {
		lines, err := logOf(s.server.Process).lines("level=(WARN|ERROR)")
		if limit := maxAttackLines + int(duration/time.Second)*maxAttackLines/10; err != nil || len(lines) > limit {
			t.Errorf("log of %s has %d warnings and errors, %v, want at most %d", s.dc, len(lines), err, limit)
		}
		if strings.Contains(metricLines(t, s.server.HTTP), "wanfed_serf_events") {
			t.Errorf("/metrics of %s names events, want no metric that a peer names", s.dc)
		}
	}
}

// attack sends gossip of one mode to all sites, and returns the highest memory
// of each server. The duration begins when each site has been sent a message.
func attack(t *testing.T, l *loopback, sites []*site, mode string, duration time.Duration) map[*site]int {
	send, alpn := sendPackets, wanfed.ProtoGossip
	if mode == "states" {
		send, alpn = sendStates, wanfed.ProtoStream
	}
	ctx, stop := context.WithTimeout(t.Context(), duration+waitLimit)
	defer stop()
	first, done := make(chan struct{}, len(sites)), make(chan struct{}, len(sites))
	for _, s := range sites {
		id := l.ca.Identity(t, tlsutil.RoleServer, "srv1", "dc3")
		go func() {
			sent := sync.OnceFunc(func() { first <- struct{}{} })
			for ctx.Err() == nil { // a server may close the connection
				c, err := dial(ctx, s.server.Addr, id.ClientConfig("srv1.server."+s.dc+".wanfed", alpn))
				if err == nil {
					release := context.AfterFunc(ctx, func() { c.Close() })
					send(ctx, c, mode, sent)
					release()
					c.Close()
				}
			}
			done <- struct{}{}
		}()
	}
	worst := map[*site]int{}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for started, ended := 0, 0; ended < len(sites); {
		select {
		case <-first:
			if started++; started == len(sites) {
				defer time.AfterFunc(duration, stop).Stop()
			}
		case <-done:
			ended++
		case <-tick.C:
		}
		if n := started + len(first); ended == len(sites) && n < ended {
			t.Errorf("%s: %d of %d servers were sent a message within %v", mode, n, ended, duration+waitLimit)
		}
		for _, s := range sites {
			worst[s] = max(worst[s], rssOf(t, s))
		}
	}
	return worst
}

// forgedPorts are the ports in forged messages, at 127.0.0.99.
var forgedPorts = []int{7022, 7001}

// packetBomb is a user event of 8 MB, compressed to 7 KB. With the race
// detector, the compression takes a second.
var packetBomb = sync.OnceValue(func() []byte {
	return gossipBomb(serfMessage(3, map[string]any{"LTime": 7, "Name": "x", "Payload": make([]byte, 8<<20)}))
})

// sendPackets writes packets of a mode until ctx or the connection ends. It
// calls sent after each packet.
func sendPackets(ctx context.Context, c net.Conn, mode string, sent func()) {
	for i := 0; ctx.Err() == nil; i++ {
		var b []byte
		victim, incarnation := []string{"srv1.dc1", "srv1.dc2"}[i%2], []uint32{2, 1000, 60000, math.MaxUint32}[i/2%4]
		switch mode {
		case "bomb":
			b = packetBomb()
		case "large packets": // the last one ends the connection
			b = make([]byte, []int{wanfed.MaxPacket, wanfed.MaxPacket, 60 << 10}[i%3])
		case "event":
			b = serfMessage(3, map[string]any{"LTime": 7, "Name": "x", "Payload": randomBytes(1800)})
		case "event names":
			b = serfMessage(3, map[string]any{"LTime": 7, "Name": fmt.Sprintf("%x", randomBytes(100))})
		case "intents":
			b = serfMessage(0, map[string]any{"LTime": 5, "Node": fmt.Sprintf("%x.dc3", randomBytes(50))})
		case "prune":
			b = serfMessage(0, map[string]any{"LTime": 1 << 30, "Node": []string{"srv1.dc2", "srv1.dc3"}[i%2], "Prune": true})
		case "leave":
			b = serfMessage(0, map[string]any{"LTime": 1<<40 + i, "Node": "srv1.dc1"})
		case "clock":
			b = serfMessage(1, map[string]any{"LTime": uint64(math.MaxUint64), "Node": []string{"srv1.dc1", "srv1.dc3"}[i%2]})
		case "alive":
			b = aliveMessage(victim, incarnation)
		case "address":
			b = memberMessage(4, map[string]any{"Incarnation": 0, "Node": victim, "Addr": []byte{127, 0, 0, 99}, "Port": forgedPorts[0],
				"Meta": []byte{255, 0x80}, "Vsn": []byte{1, 5, 2, 2, 5, 5}})
		case "suspect":
			b = memberMessage(3, map[string]any{"Incarnation": incarnation, "Node": victim, "From": "srv1.dc3"})
		case "leave and left":
			b = compoundFrame(serfMessage(0, map[string]any{"LTime": 1<<20 + i, "Node": victim}),
				memberMessage(5, map[string]any{"Incarnation": incarnation, "Node": victim, "From": victim}))
		case "ping":
			b = memberMessage(byte(i%2), map[string]any{"Node": "srv1.dc1", "SourceNode": "srv1.dc1", "Target": []byte{127, 0, 0, 99},
				"Port": forgedPorts[0], "SourceAddr": []byte{127, 0, 0, 99}, "SourcePort": forgedPorts[0], "Query": i%4 > 1})
		case "invented":
			b = aliveMessage(fmt.Sprintf("s%d.d%d", i%200, i/200%400), 1)
		case "dead":
			b = memberMessage(5, map[string]any{"Incarnation": incarnation, "Node": victim, "From": "srv1.dc3"})
		case "left":
			b = memberMessage(5, map[string]any{"Incarnation": incarnation, "Node": victim, "From": victim})
		case "random":
			b = append([]byte{byte(i % 14)}, randomBytes(1+i%300)...)
		}
		if _, err := c.Write(gossipFrame(1, "srv1", string(b))); err != nil {
			return
		}
		sent()
		if forging := slices.Contains([]string{"alive", "address", "suspect", "dead", "left", "leave and left"}, mode); forging {
			time.Sleep(100 * time.Microsecond) // the federation keeps a processor
		}
	}
}

// stateMessages are bombs, and announcements of many members without them.
var stateMessages = sync.OnceValue(func() [][]byte {
	return [][]byte{
		gossipBomb(make([]byte, 38<<20)), gossipBomb(make([]byte, 4<<20)),
		gossipBomb(bytes.Repeat([]byte{6, 0x80}, 2<<20)),
		append(memberMessage(6, map[string]any{"Nodes": 1 << 20, "UserStateLen": 0}), 0x80),
		append(memberMessage(6, map[string]any{"Nodes": 1 << 14, "UserStateLen": 20 << 20}),
			bytes.Repeat([]byte{0x80}, 1<<14)...),
		memberMessage(8, map[string]any{"UserMsgLen": 20 << 20}),
	}
})

// sendStates sends state exchanges until ctx or the connection ends. It calls
// sent after each of them.
func sendStates(ctx context.Context, c net.Conn, _ string, sent func()) {
	messages := stateMessages()
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	session, err := yamux.Client(c, cfg)
	if err != nil {
		return
	}
	defer session.Close()
	var open [64]net.Conn // streams that wait for a response, or for more bytes
	for i := 0; ctx.Err() == nil; i++ {
		if old := open[i%len(open)]; old != nil {
			old.Close()
		}
		st, err := session.OpenStream()
		if err != nil {
			return
		}
		open[i%len(open)] = st
		st.SetDeadline(time.Now().Add(time.Second))
		st.Write(append(streamHeader(0x51, 1, "srv1", "srv1.dc3"), messages[i%len(messages)]...))
		sent()
	}
}

// memberMessage encodes a message of memberlist.
func memberMessage(kind byte, fields map[string]any) []byte {
	b := bytes.NewBuffer([]byte{kind})
	if err := codec.NewEncoder(b, &codec.MsgpackHandle{}).Encode(fields); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// serfMessage encodes a message of serf.
func serfMessage(kind byte, fields map[string]any) []byte {
	return append([]byte{8}, memberMessage(kind, fields)...)
}

func aliveMessage(name string, incarnation uint32) []byte {
	_, dc, _ := strings.Cut(name, ".")
	tags := memberMessage(255, map[string]any{"role": "consul", "dc": dc, "primary": "dc1", "port": "8300"})
	return memberMessage(4, map[string]any{
		"Incarnation": incarnation, "Node": name, "Addr": []byte{127, 0, 0, 99}, "Port": forgedPorts[1], "Meta": tags,
		"Vsn": []byte{1, 5, 2, 2, 5, 5},
	})
}

// compoundFrame is a list of messages of memberlist.
func compoundFrame(messages ...[]byte) []byte {
	b := []byte{7, byte(len(messages))}
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	}
	return append(b, bytes.Join(messages, nil)...)
}

// memberWatch reads how sites list the members of their datacenters.
type memberWatch struct {
	stop func()

	mu          sync.Mutex
	reads       int
	differences []string
}

// watchMembers compares the members of the datacenters of sites, in the lists of
// all of them, with the present ones, until stop is called.
func watchMembers(t *testing.T, sites []*site) *memberWatch {
	t.Helper()
	list := func(s *site) (out []string, err error) {
		c, err := api.NewClient(api.ClientConfig{Addr: s.server.HTTP})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		members, err := c.Members(t.Context(), true, api.QueryOptions{})
		for _, m := range members {
			_, dc, _ := strings.Cut(m.Name, ".")
			if slices.ContainsFunc(sites, func(s *site) bool { return s.dc == dc }) {
				out = append(out, fmt.Sprintf("%s %s:%d %v gateways %s primary %s", m.Name, m.Addr, m.Port, m.Status,
					m.Tags["gw"], m.Tags["primary"]))
			}
		}
		return out, err
	}
	before := map[*site][]string{}
	for _, s := range sites {
		testutil.Await(t, waitLimit, "members of all datacenters with gateways at "+s.dc, func(context.Context) error {
			all, err := list(s)
			if before[s] = all; err == nil && (len(all) != len(sites) || strings.Contains(fmt.Sprint(all), "gateways  ")) {
				err = fmt.Errorf("members are %v", all)
			}
			return err
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &memberWatch{}
	var wg sync.WaitGroup
	w.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(w.stop)
	for _, s := range sites {
		wg.Go(func() {
			for ctx.Err() == nil {
				all, err := list(s)
				w.mu.Lock()
				if w.reads++; err == nil && !slices.Equal(all, before[s]) && len(w.differences) < 20 {
					w.differences = append(w.differences, fmt.Sprintf("members at %s = %q, want %q", s.dc, all, before[s]))
				}
				w.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	return w
}

// check reports the differences since the last check.
func (w *memberWatch) check(t *testing.T, when string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%s: %d lists of members, %d different", when, w.reads, len(w.differences))
	for _, d := range w.differences {
		t.Errorf("%s: %s", when, d)
	}
	if w.differences = nil; w.reads == 0 {
		t.Errorf("%s: no list of members was read", when)
	}
}

// gossipBomb compresses a message as memberlist does.
func gossipBomb(b []byte) []byte {
	var z bytes.Buffer
	w := lzw.NewWriter(&z, lzw.LSB, 8)
	w.Write(b)
	w.Close()
	return memberMessage(9, map[string]any{"Algo": 0, "Buf": z.Bytes()})
}

func randomBytes(n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rand.Uint64())
	}
	return b[:n]
}
