// SPDX-License-Identifier: MPL-2.0

package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/proxyproto"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/kv"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// attackerEnv makes this test binary the process of the attacker.
const attackerEnv = "WANFED_TEST_ATTACKER"

// attackFloodRate is the number of ClientHellos per second of the flood, and
// floodSource the address that sends them.
const (
	attackFloodRate = 1200
	floodSource     = "127.0.0.66"
)

// attackPlan is the standard input of the attacker.
type attackPlan struct {
	CA      tlsutil.KeyPair // for the certificates of dc3
	Role    tlsutil.Role
	Victims []attackVictim
	Kinds   []string // of attackKinds
}

// attackKinds are the kinds of attacks.
var attackKinds = []string{"calls", "flood", "gossip", "hello", "odd hello", "short", "states"}

type attackVictim struct{ DC, Server, Gateway string }

// attacker is a process that attacks until stop.
type attacker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   strings.Builder
}

// startAttacker attacks victims with a certificate of dc3, in several ways at once.
// The attacker uses only processor time that no other process needs: in production
// it has machines of its own. What the servers do for it still competes with what they do for others.
func startAttacker(t *testing.T, l *loopback, victims []*site, role tlsutil.Role, kinds ...string) *attacker {
	t.Helper()
	plan := attackPlan{CA: l.ca.Pair, Role: role, Kinds: kinds}
	for _, s := range victims {
		plan.Victims = append(plan.Victims, attackVictim{s.dc, s.server.Addr, s.gateway.WAN})
	}
	a := &attacker{cmd: exec.Command(os.Args[0], "-test.run=^TestAttackSuite$", "-test.timeout=0")}
	a.cmd.Env = append(os.Environ(), attackerEnv+"=1")
	a.cmd.Stdout, a.cmd.Stderr = &a.out, &a.out
	stdin, err := a.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.stdin = stdin
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_IDLE}, 0)
		if err == nil {
			err = a.cmd.Start()
		}
		started <- err
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.cmd.Process.Kill() })
	if err := json.NewEncoder(stdin).Encode(plan); err != nil {
		t.Fatal(err)
	}
	return a
}

var attackCounts = regexp.MustCompile(`(?m)^attacks: (.*)$`)

// stop ends the attack, and returns the number of attacks of each kind. The test
// fails if the attacker was permitted to do what it must not.
func (a *attacker) stop(t *testing.T) string {
	t.Helper()
	a.stdin.Close()
	err := a.cmd.Wait()
	counts := attackCounts.FindStringSubmatch(a.out.String())
	if err != nil || counts == nil {
		text := a.out.String()
		t.Errorf("attacker = %v, want success:\n%s", err, text[:min(len(text), 2000)])
		return ""
	}
	return counts[1]
}

// runAttacker attacks according to the plan on standard input, until that ends.
func runAttacker(t *testing.T) {
	var plan attackPlan
	stdin := bufio.NewReader(os.Stdin)
	if err := json.NewDecoder(stdin).Decode(&plan); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	a := &attacks{t: t, ctx: ctx, counts: map[string]*atomic.Int64{}, kinds: plan.Kinds,
		l: &loopback{t: t, ca: &tlstest.CA{Domain: tlsutil.DefaultDomain, Pair: plan.CA}}, role: plan.Role}
	for _, v := range plan.Victims {
		a.start(&site{dc: v.DC, server: &subprocess.Server{ServerReady: subprocess.ServerReady{Addr: v.Server}},
			gateway: &subprocess.Gateway{GatewayReady: subprocess.GatewayReady{WAN: v.Gateway}}})
	}
	a.run("flood", func(int) {
		var opened atomic.Int64
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(floodSource)}, Timeout: 2 * time.Second}
		_ = flood(ctx, from, plan.Victims[0].Gateway, attackFloodRate, &opened)
		a.counts["flood"].Add(opened.Load())
	})
	a.wg.Wait()
	text := ""
	for _, name := range slices.Sorted(maps.Keys(a.counts)) {
		n := a.counts[name].Load()
		if text += fmt.Sprintf(" %s %d,", name, n); n == 0 {
			t.Errorf("no attack of the kind %s was made", name)
		}
	}
	fmt.Printf("attacks:%s\n", strings.TrimSuffix(text, ","))
}

// attacks are the goroutines of an attacker.
type attacks struct {
	t      *testing.T
	ctx    context.Context // of the process
	l      *loopback       // has only the CA
	role   tlsutil.Role
	wg     sync.WaitGroup
	kinds  []string
	counts map[string]*atomic.Int64
}

// run repeats an attack until ctx ends, and counts it, if its kind is one of the
// plan.
func (a *attacks) run(name string, attack func(i int)) {
	if !slices.Contains(a.kinds, name) {
		return
	}
	if a.counts[name] == nil {
		a.counts[name] = &atomic.Int64{}
	}
	n := a.counts[name]
	a.wg.Go(func() {
		for i := 0; a.ctx.Err() == nil; i++ {
			attack(i)
			n.Add(1)
			select {
			case <-a.ctx.Done():
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// start attacks s, which has only addresses.
func (a *attacks) start(s *site) {
	ctx, t := a.ctx, a.t
	id := a.l.ca.Identity(t, a.role, "srv1", "dc3")
	sni := "srv1.server." + s.dc + ".wanfed"
	for i, addr := range []string{s.server.Addr, s.gateway.WAN} {
		a.run("gossip", func(k int) { // with a mutation of each third message
			mode := attackModes[(k+i)%len(attackModes)]
			c, err := dial(ctx, addr, id.ClientConfig(sni, wanfed.ProtoGossip))
			if err != nil {
				return
			}
			defer c.Close()
			defer context.AfterFunc(ctx, func() { c.Close() })()
			short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			sendPackets(short, &mutatingConn{Conn: c}, mode, func() { time.Sleep(200 * time.Microsecond) })
		})
		a.run("hello", func(int) { mutateHello(ctx, addr, id.ClientConfig(sni, "h2")) })
		a.run("odd hello", func(k int) { oddHello(ctx, addr, sni, k) })
		a.run("short", func(int) { a.expire(addr, sni) })
	}
	a.run("states", func(int) {
		c, err := dial(ctx, s.gateway.WAN, id.ClientConfig(sni, wanfed.ProtoStream))
		if err != nil {
			return
		}
		defer c.Close()
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		defer context.AfterFunc(short, func() { c.Close() })()
		sendStates(short, c, "", func() { time.Sleep(5 * time.Millisecond) })
	})
	cc := a.l.call(t, s.gateway.WAN, "server."+s.dc+".wanfed", a.role, "srv1", "dc3")
	federation, resources := pb.NewFederationServiceClient(cc), pb.NewResourceServiceClient(cc)
	replication := pb.NewReplicationServiceClient(cc)
	states := map[string]*pb.FederationState{}
	for _, dc := range []string{"dc1", "dc2", "dc3"} {
		states[dc] = largeAttackState(dc)
	}
	a.run("calls", func(k int) { // all calls fail, or change only the state of dc3
		call, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		dc := []string{"dc3", "dc1", "dc2"}[k%3]
		states[dc].MeshGateways[k%200].Service.Meta["p"] = fmt.Sprintf("%0800d", k)
		_, _ = federation.Apply(call, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_UPSERT, State: states[dc],
		})
		_, _ = federation.Apply(call, &pb.ApplyFederationStateRequest{
			Op: pb.ApplyFederationStateRequest_OP_DELETE, State: &pb.FederationState{Datacenter: "dc2"}, Force: true,
		})
		data, _ := anypb.New(&pb.KVEntry{Value: randomBytes(100)})
		if r, err := resources.Write(call, &pb.WriteRequest{Resource: &pb.Resource{
			Id: &pb.ID{Type: kv.EntryType, Name: "stolen"}, Data: data,
		}}); err == nil {
			t.Errorf("%v of dc3 wrote %v in %s, want a refusal", a.role, r.GetResource().GetId(), s.dc)
		}
		if stream, err := replication.Follow(call); err == nil {
			_ = stream.Send(&pb.FollowRequest{Part: &pb.FollowRequest_Hello{Hello: &pb.FollowHello{Withdrawn: 1}}})
			_, _ = stream.Recv()
		}
	})
}

// expire holds a connection with a certificate that is valid for 2 s more. A server
// must end it within 60 s, and must refuse the certificate afterwards. It is the
// attack program "short".
func (a *attacks) expire(addr, sni string) {
	ends := time.Now().Add(3 * time.Second).Truncate(time.Second)
	pair, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: a.role, Node: "short", DC: "dc3", Days: 1,
		Now: ends.AddDate(0, 0, -1), CA: a.l.ca.Pair})
	if err != nil {
		a.t.Errorf("CreateCert() = %v, want nil", err)
		return
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		a.t.Errorf("X509KeyPair() = %v, want nil", err)
		return
	}
	cfg := &tls.Config{ServerName: sni, InsecureSkipVerify: true, Certificates: []tls.Certificate{cert},
		NextProtos: []string{"h2"}}
	// read returns when the server has ended the connection, or at the deadline.
	read := func(deadline time.Time) error {
		c, err := dial(a.ctx, addr, cfg)
		if err != nil {
			return err
		}
		defer c.Close()
		defer context.AfterFunc(a.ctx, func() { c.Close() })()
		c.SetDeadline(deadline)
		_, err = io.Copy(io.Discard, c)
		return err
	}
	if err := read(ends.Add(time.Minute)); isTimeout(err) {
		a.t.Errorf("connection to %s is open 1 min after the certificate expired, want it closed", addr)
	}
	if wait := time.Until(ends); wait > 0 { // the server has ended the connection for another reason
		select {
		case <-a.ctx.Done():
		case <-time.After(wait):
		}
	}
	if err := read(time.Now().Add(waitLimit)); isTimeout(err) {
		a.t.Errorf("connection to %s with an expired certificate is open, want a refusal", addr)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// attackModes are the modes of sendPackets.
var attackModes = []string{"bomb", "event", "event names", "intents", "prune", "leave", "clock", "large packets", "alive",
	"address", "suspect", "dead", "left", "leave and left", "ping", "random", "invented"}

// largeAttackState returns a state of 200 gateways.
func largeAttackState(dc string) *pb.FederationState {
	s := &pb.FederationState{Datacenter: dc}
	for i := range 200 {
		node := fmt.Sprintf("g%d", i)
		s.MeshGateways = append(s.MeshGateways, &pb.MeshGateway{
			Node: &pb.Node{Node: node, Datacenter: dc, Address: "127.0.0.3"},
			Service: &pb.Service{Node: node, Kind: "mesh-gateway", Id: node, Service: "mesh-gateway",
				Meta: map[string]string{"p": strings.Repeat("0", 800)}, TaggedAddresses: map[string]*pb.Address{
					"wan": {Address: "224.0.0.3", Port: uint32(20000 + i)},
				}},
		})
	}
	return s
}

// oddNames are server names of oddHello.
var oddNames = []string{"SRV1.Server.DC1.WANFED", "srv1.server.dc1.wanfed\x00", "srv1.server.dc1.wanfed\x00.evil",
	"evil\nlevel=ERROR msg=\"forged\"", strings.Repeat(".", 250) + "a", strings.Repeat("a", 15000), "a.b.c.server.dc2.wanfed",
	"server.dc3.wanfed", "gateway.dc1.wanfed", "127.0.0.1", "é.server.dc1.wanfed"}

// oddHello sends bytes k of a list that no client of the federation sends: PROXY
// headers, other protocols, and ClientHellos in unusual pieces or with unusual
// names. It is the attack program "hello.py".
func oddHello(ctx context.Context, addr, sni string, k int) {
	hello, err := helloOf(sni)
	if err != nil {
		return
	}
	forged := netip.MustParseAddrPort("192.0.2.1:7")
	odd := [][]byte{
		append(proxyproto.Append(nil, forged, forged), hello...),
		append([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"), hello...),
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		splitRecord(hello, 1), splitRecord(hello, 7),
		append(bytes.Repeat([]byte{22, 3, 1, 0, 0}, 5), hello...),
		append([]byte{20, 3, 1, 0, 1, 1}, hello...),
		append(slices.Clone(hello), 23, 3, 3, 0, 5, 'h', 'e', 'l', 'l', 'o'),
	}
	if k %= len(odd) + len(oddNames); k < len(odd) {
		hello = odd[k]
	} else if hello, err = helloOf(oddNames[k-len(odd)]); err != nil {
		return
	}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
	_, _ = c.Write(hello)
	_, _ = io.Copy(io.Discard, c)
}

// splitRecord divides the first TLS record in b into records of n bytes.
func splitRecord(b []byte, n int) (out []byte) {
	const head = 5 // RFC 8446 section 5.1
	for part := range slices.Chunk(b[head:], n) {
		out = append(append(out, b[0], b[1], b[2], byte(len(part)>>8), byte(len(part))), part...)
	}
	return out
}

// mutatingConn changes a byte of each third write, after the frame's head.
type mutatingConn struct {
	net.Conn
	writes int
}

func (c *mutatingConn) Write(b []byte) (int, error) {
	const head = 10 // of a frame for srv1
	if c.writes++; c.writes%3 == 0 && len(b) > head {
		b = slices.Clone(b)
		b[head+rand.IntN(len(b)-head)] ^= byte(1 + rand.IntN(255))
	}
	return c.Conn.Write(b)
}

// mutateHello sends a ClientHello with a few changed bytes, or a part of one, and
// closes the connection.
func mutateHello(ctx context.Context, addr string, cfg *tls.Config) {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(50 * time.Millisecond))
	_ = tls.Client(helloConn{c}, cfg).HandshakeContext(ctx) // fails
	time.Sleep(10 * time.Millisecond)                       // the pace of the attack
}

// helloConn mutates or cuts what is written.
type helloConn struct{ net.Conn }

func (c helloConn) Write(b []byte) (int, error) {
	out := slices.Clone(b)
	for range rand.IntN(3) {
		out[rand.IntN(len(out))] ^= byte(1 + rand.IntN(255))
	}
	if rand.IntN(2) == 0 {
		out = out[:1+rand.IntN(len(out))]
	}
	if _, err := c.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}
