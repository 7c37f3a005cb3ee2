// SPDX-License-Identifier: MPL-2.0

package test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/resourcefile"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/test/lab"
)

const (
	// moveSteps is the number of actions of one run.
	moveSteps = 6
	// moveCall is the timeout of a call of a client.
	moveCall  = 2 * time.Second
	movedName = "register"
)

// TestMoves changes the primary of three datacenters of real processes in
// random order, with partitions, kill -9 and SIGSTOP, while clients write in all
// of them. A write is never acknowledged in an older epoch than its datacenter
// knew before, and every acknowledged write is in the last primary or in a
// file. In odd seeds each change has the consent of the former primary: then no
// write is discarded, and compare-and-swap is linearizable. WANFED_MOVES is the
// number of runs; WANFED_MOVES_SEED is the first seed.
func TestMoves(t *testing.T) {
	t.Parallel()
	lab.NeedNFT(t)
	runs, first := 3, 0
	if n, err := strconv.Atoi(os.Getenv("WANFED_MOVES")); err == nil {
		runs = n
	}
	if n, err := strconv.Atoi(os.Getenv("WANFED_MOVES_SEED")); err == nil {
		first = n
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			m := newMoves(t, uint64(seed))
			m.run()
			m.settle()
			m.check()
		})
	}
}

// moves is a run with one seed.
type moves struct {
	promotion
	rand       *rand.Rand
	takeOvers  bool                       // operators call TakeOver
	configured map[*lab.Datacenter]string // primary in the configuration
	suspended  map[*lab.Node]bool
	cuts       map[*lab.Node]bool // gateways with rules of cut
	steps      []string

	mu    sync.Mutex
	acked map[string]string // datacenter that acknowledged a document, by name
	swaps history
}

func newMoves(t *testing.T, seed uint64) *moves {
	servers := []int{1, 1, 1}
	if seed%4 >= 2 {
		servers[seed/4%3] = 3
	}
	m := &moves{
		promotion: newPromotion(t, servers...), rand: rand.New(rand.NewPCG(seed, 0)), takeOvers: seed%2 == 0,
		configured: map[*lab.Datacenter]string{}, suspended: map[*lab.Node]bool{}, cuts: map[*lab.Node]bool{},
		acked: map[string]string{}, swaps: history{start: time.Now()},
	}
	for _, dc := range m.l.Datacenters() {
		m.configured[dc] = "dc1"
		for _, s := range dc.Servers {
			m.at(s) // the clients share it
		}
	}
	began := time.Now()
	m.mustWrite(m.dc("dc1"), m.text(movedName, "0"))
	m.swaps.did(0, call{verb: verbWrite, key: movedName, value: "0"}, outcome{}, began)
	m.same("start", m.l.Datacenters()...)
	return m
}

// text returns a document with a text.
func (m *moves) text(name, text string) *pb.Resource {
	r, err := resource.New(document.Type, name, &pb.Document{Content: structpb.NewStringValue(text)})
	if err != nil {
		panic(err) // cannot happen: name is valid
	}
	r.Id.Uid = ""
	return r
}

func textOf(r *pb.Resource) string {
	d, _ := resource.Decode[*pb.Document](r)
	return d.GetContent().GetStringValue()
}

// run performs random actions while clients write.
func (m *moves) run() {
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i, dc := range m.l.Datacenters() {
		for n := range 2 {
			c := &moveClient{
				moves: m, id: 2*i + n, dc: dc, rand: rand.New(rand.NewPCG(m.rand.Uint64(), 0)),
			}
			wg.Go(func() { c.run(ctx) })
		}
	}
	for range moveSteps {
		m.step()
		waitSome(ctx, m.rand, 200*time.Millisecond, 1500*time.Millisecond)
	}
}

// step performs one random action.
func (m *moves) step() {
	dcs := m.l.Datacenters()
	pick := func() *lab.Datacenter { return dcs[m.rand.IntN(len(dcs))] }
	a, b, target := pick(), pick(), pick()
	nodes := a.Nodes()
	node := nodes[m.rand.IntN(len(nodes))]
	switch n := m.rand.IntN(12); {
	case n < 2 && a != b:
		m.did("cut %s from %s", a.Name, b.Name)
		m.cut(a.Gateways[0], b.Gateways[0])
	case n < 3:
		m.did("heal")
		m.heal()
	case n < 5:
		m.did("kill %s", node.WANName())
		m.end(node, true)
		waitSome(m.t.Context(), m.rand, time.Millisecond, time.Second)
		m.begin(node)
	case n < 7 && !m.suspended[node]:
		m.did("suspend %s", node.WANName())
		node.Suspend()
		m.suspended[node] = true
	case n < 10 && m.takeOvers:
		m.did("take over in %s", target.Name)
		m.configure(target, target.Name)
		m.tryTakeOver(target)
	default:
		m.did("move to %s", target.Name)
		for _, i := range m.rand.Perm(len(dcs)) {
			m.configure(dcs[i], target.Name)
		}
	}
}

func (m *moves) did(format string, args ...any) {
	m.steps = append(m.steps, fmt.Sprintf(format, args...))
}

// cut drops all packets between two gateways.
func (m *moves) cut(a, b *lab.Node) {
	a.NFT(fmt.Sprintf(`table inet moves {
		chain in  { type filter hook input  priority 0; ip saddr %[1]s drop; }
		chain out { type filter hook output priority 0; ip daddr %[1]s drop; }
	}`, b.WAN))
	m.cuts[a] = true
}

// heal ends all cuts and suspensions.
func (m *moves) heal() {
	for n := range m.cuts {
		n.NFT("delete table inet moves")
	}
	clear(m.cuts)
	for n := range m.suspended {
		n.Resume()
	}
	clear(m.suspended)
}

// end ends a process.
func (m *moves) end(n *lab.Node, kill bool) {
	if m.suspended[n] { // it does not see a signal to stop
		kill = true
		delete(m.suspended, n)
	}
	if kill {
		n.Kill()
	} else {
		n.Stop()
	}
}

// begin starts an ended process.
func (m *moves) begin(n *lab.Node) {
	m.t.Helper()
	if n.WAN != "" {
		n.StartGateway()
		return
	}
	m.start(n, m.configured[n.DC()])
}

// configure restarts the servers of dc with another primary.
func (m *moves) configure(dc *lab.Datacenter, primary string) {
	m.t.Helper()
	m.configured[dc] = primary
	for _, s := range dc.Servers {
		m.end(s, m.rand.IntN(2) == 0)
		m.begin(s)
	}
}

// tryTakeOver calls TakeOver in dc, from each datacenter that may be the
// primary. The call fails if it is not needed.
func (m *moves) tryTakeOver(dc *lab.Datacenter) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 6*time.Second)
	defer cancel()
	s := dc.Servers[m.rand.IntN(len(dc.Servers))]
	id := m.identity(s)
	cc := operatorAt(m.t, s, id)
	defer cc.Close()
	client := pb.NewOperatorServiceClient(cc)
	st, err := m.knownBy(ctx, s)
	for err != nil && ctx.Err() == nil {
		waitSome(ctx, m.rand, 50*time.Millisecond, 100*time.Millisecond)
		st, err = m.knownBy(ctx, s)
	}
	for _, from := range []string{st.GetDatacenter(), st.GetSupersededBy().GetDatacenter()} {
		if from == "" {
			continue
		}
		state, err := client.TakeOver(ctx, &pb.TakeOverRequest{From: from, Check: true})
		if err == nil {
			var proof *pb.EpochProof
			proof, err = replication.SignEpoch(id, replication.Epoch{Number: state.NextEpoch, Datacenter: dc.Name}, "")
			if err != nil {
				m.t.Error(err)
				return
			}
			_, err = client.TakeOver(ctx, &pb.TakeOverRequest{From: from, Proof: proof})
		}
		m.did("take-over in %s from %q = %v", dc.Name, from, err)
	}
}

// knownBy returns the primary resource that s has applied.
func (m *moves) knownBy(ctx context.Context, s *lab.Node) (*pb.Primary, error) {
	ctx, cancel := context.WithTimeout(ctx, moveCall)
	defer cancel()
	resp, err := m.operators[s].Read(ctx, &pb.ReadRequest{Id: resource.ID(replication.PrimaryType, "primary")})
	if err != nil {
		return nil, err
	}
	return resource.Decode[*pb.Primary](resp.Resource)
}

// epochIn returns the highest epoch in st.
func epochIn(st *pb.Primary) replication.Epoch {
	own := replication.Epoch{Number: st.GetEpoch(), Datacenter: st.GetDatacenter()}
	by := replication.Epoch{
		Number: st.GetSupersededBy().GetNumber(), Datacenter: st.GetSupersededBy().GetDatacenter(),
	}
	if by.Supersedes(own) {
		return by
	}
	return own
}

// moveClient makes one call after the other at random servers of one
// datacenter.
type moveClient struct {
	*moves
	id   int
	dc   *lab.Datacenter
	rand *rand.Rand
	seen *pb.Resource // an earlier version of the register
}

func (c *moveClient) run(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		waitSome(ctx, c.rand, 20*time.Millisecond, 200*time.Millisecond)
		s := c.dc.Servers[c.rand.IntN(len(c.dc.Servers))]
		known, err := c.knownBy(ctx, s)
		if err != nil {
			continue
		}
		name := fmt.Sprintf("%s-%d-%d", c.dc.Name, c.id, i)
		if out := c.put(ctx, s, name); out != nil && out.PrimaryEpoch < epochIn(known).Number {
			c.t.Errorf("%s acknowledged %s in epoch %d although it knew %v", s.WANName(), name, out.PrimaryEpoch,
				epochIn(known))
		}
		c.swap(ctx, s, name)
	}
}

// put writes a document, and returns it if the write was acknowledged.
func (c *moveClient) put(ctx context.Context, s *lab.Node, name string) *pb.Resource {
	ctx, cancel := context.WithTimeout(ctx, moveCall)
	defer cancel()
	resp, err := c.operators[s].Write(ctx, &pb.WriteRequest{Resource: c.text(name, name)})
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acked[name] = c.dc.Name
	return resp.Resource
}

// swap writes the register as a compare-and-swap, with the version of a read or
// with an earlier one.
func (c *moveClient) swap(ctx context.Context, s *lab.Node, value string) {
	ctx, cancel := context.WithTimeout(ctx, moveCall)
	defer cancel()
	if c.seen == nil || c.rand.IntN(3) > 0 {
		resp, err := c.operators[s].Read(ctx, &pb.ReadRequest{Id: resource.ID(document.Type, movedName)})
		if err != nil {
			return
		}
		c.seen = resp.Resource
	}
	next := c.text(movedName, value)
	next.Version = c.seen.Version
	began := time.Now()
	resp, err := c.operators[s].Write(ctx, &pb.WriteRequest{Resource: next})
	known := resource.FromStatus(err)
	for _, refused := range []error{
		resource.ErrConflict, resource.ErrFederated, resource.ErrNoPrimary, resource.ErrUnreachable, resource.ErrNotLeader,
	} {
		if errors.Is(known, refused) && !errors.Is(known, resource.ErrUnknownOutcome) {
			return // nothing was written; a version may change without the value
		}
	}
	if neverSent(err) {
		return
	}
	what := call{verb: verbCAS, key: movedName, expect: textOf(c.seen), value: value}
	c.swaps.did(c.id, what, outcome{unknown: err != nil}, began)
	if err == nil {
		c.seen = resp.Resource
	}
}

// settle starts and heals everything, and waits until all datacenters follow
// the primary with the highest epoch.
func (m *moves) settle() {
	m.t.Helper()
	m.heal()
	var last replication.Epoch
	for _, dc := range m.l.Datacenters() {
		m.await("the epoch of "+dc.Name, func(ctx context.Context) error {
			st, err := m.knownBy(ctx, dc.Servers[0])
			if e := epochIn(st); err == nil && e.Supersedes(last) {
				last = e
			}
			return err
		})
	}
	m.did("end with the primary %s", last.Datacenter)
	for _, dc := range m.l.Datacenters() {
		m.configure(dc, last.Datacenter)
	}
	m.primary(promotionLimit, last.Datacenter, m.l.Datacenters()...)
	m.await("a write in "+last.Datacenter, func(ctx context.Context) error {
		_, err := m.at(m.dc(last.Datacenter).Servers[0]).Write(ctx, &pb.WriteRequest{Resource: m.text("last", "x")})
		return err
	})
	m.same("settled", m.l.Datacenters()...)
}

// discarded returns the names of the documents in the files of all servers.
func (m *moves) discarded() map[string]bool {
	m.t.Helper()
	out := map[string]bool{}
	for _, s := range m.l.Running() {
		files, err := filepath.Glob(filepath.Join(s.DataDir(), "discarded-*.json"))
		if err != nil {
			m.t.Fatal(err)
		}
		for _, file := range files {
			documents, err := resourcefile.Read(file, nil)
			if err != nil {
				m.t.Fatal(err)
			}
			for _, d := range documents {
				r, err := d.Resource(func(string) (api.ResourceTypeName, error) { return api.ResourceTypeName{}, nil })
				if err != nil {
					m.t.Fatal(err)
				}
				out[r.ID.Name] = true
			}
		}
	}
	return out
}

// check fails the test if an acknowledged write is lost, or if the swaps are
// not linearizable.
func (m *moves) check() {
	m.t.Helper()
	discarded := m.discarded()
	primary := m.dc(m.configured[m.dc("dc1")])
	now := m.records(primary)
	saved, lost := 0, 0
	for name, by := range m.acked {
		switch {
		case now[name] != nil:
		case discarded[name]:
			saved++
		default:
			lost++
			m.t.Errorf("document %s, which %s acknowledged, is neither in %s nor in a file", name, by, primary.Name)
		}
	}
	if !m.takeOvers {
		if saved > 0 {
			m.t.Errorf("%d writes were saved to files, want 0 without a take-over", saved)
		}
		m.swaps.did(0, call{verb: verbRead, key: movedName}, outcome{value: textOf(now[movedName])}, time.Now())
		m.swaps.dropUnobserved()
		m.swaps.check(m.t)
	}
	m.t.Logf("%d writes acknowledged, %d saved, %d lost; %d swaps, %d with an unknown outcome; steps: %s",
		len(m.acked), saved, lost, len(m.swaps.ops), m.swaps.unknowns, strings.Join(m.steps, "; "))
}

// dropUnobserved removes the compare-and-swaps with an unknown outcome whose
// value no other call has observed. The result of check is the same without
// them.
func (h *history) dropUnobserved() {
	observed := map[string]bool{}
	for _, op := range h.ops {
		observed[cmp.Or(op.Input.(call).expect, op.Output.(outcome).value)] = true
	}
	var kept []porcupine.Operation
	for _, op := range h.ops {
		if !op.Output.(outcome).unknown || observed[op.Input.(call).value] {
			kept = append(kept, op)
		}
	}
	h.ops = kept
}
