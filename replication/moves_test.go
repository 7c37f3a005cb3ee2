// SPDX-License-Identifier: MPL-2.0

package replication

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
)

// TestMoves_Random changes the primary of three datacenters in random order,
// with partitions, crashes and pauses, while clients write in all of them. A
// server that knows a newer epoch acknowledges no write, and every acknowledged
// write is in the last primary or in a file. If each change has the consent of
// the former primary, compare-and-swap is linearizable. WANFED_MOVES is the
// number of runs; WANFED_MOVES_SEED is the first seed.
func TestMoves_Random(t *testing.T) {
	runs, first := 20, 0
	if n, err := strconv.Atoi(os.Getenv("WANFED_MOVES")); err == nil {
		runs = n
	}
	if n, err := strconv.Atoi(os.Getenv("WANFED_MOVES_SEED")); err == nil {
		first = n
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				m := newMoves(t, uint64(seed))
				m.run()
				m.settle()
				m.check()
			})
		})
	}
}

const register = "register"

// moves is a run with one seed.
type moves struct {
	*testFederation
	rand      *rand.Rand
	dcs       []*datacenter
	up        map[string]bool // by datacenter
	takeOvers bool            // operators call TakeOver

	mu    sync.Mutex
	acked map[string]string // datacenter that acknowledged a document, by name
	swaps []porcupine.Operation
}

func newMoves(t *testing.T, seed uint64) *moves {
	m := &moves{
		testFederation: &testFederation{t: t}, rand: rand.New(rand.NewPCG(seed, 0)), up: map[string]bool{},
		takeOvers: seed%2 == 0, acked: map[string]string{},
	}
	for _, name := range []string{"dc1", "dc2", "dc3"} {
		m.dcs, m.up[name] = append(m.dcs, m.add(name, "dc1")), true
	}
	m.dcs[0].waitPrimary("dc1")
	put(t, m.dcs[0].store, docType, register, "0")
	for _, dc := range m.dcs[1:] {
		dc.waitPrimary("dc1")
		waitInSync(t, m.dcs[0].store, dc.store)
	}
	return m
}

// leader returns the manager of dc, or nil while dc is down.
func (dc *datacenter) leader() *PrimaryManager {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if dc.conn == nil {
		return nil
	}
	return dc.manager
}

func (m *moves) run() {
	ctx, cancel := context.WithCancel(m.t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i, dc := range m.dcs {
		for client := range 2 {
			r := rand.New(rand.NewPCG(m.rand.Uint64(), 0))
			wg.Go(func() { m.write(ctx, dc, 2*i+client, r) })
		}
		wg.Go(func() { m.watchOthers(ctx, dc) })
	}
	for range 12 {
		m.step()
		time.Sleep(time.Duration(m.rand.IntN(8000)) * time.Millisecond)
	}
}

// step performs one random action.
func (m *moves) step() {
	a, b, target := m.pick(), m.pick(), m.pick()
	switch n := m.rand.IntN(10); {
	case n < 2:
		m.partition(a, b)
	case n < 4:
		m.heal()
	case n < 5:
		m.restart(a, a.configured)
	case n < 6 && m.up[a.name]:
		a.stop() // until a later action starts it
		m.up[a.name] = false
	case n < 8 && m.takeOvers:
		m.restart(target, target.name)
		time.Sleep(unknownServerTimeout)
		ctx, cancel := context.WithTimeout(m.t.Context(), 10*time.Second)
		defer cancel()
		st := target.manager.stored()
		for _, from := range []string{st.GetDatacenter(), target.manager.SupersededBy().Datacenter} {
			_ = target.tryTakeOver(ctx, from) // refused if it is not needed
		}
	default:
		for _, i := range m.rand.Perm(len(m.dcs)) {
			m.restart(m.dcs[i], target.name)
			time.Sleep(time.Duration(m.rand.IntN(3000)) * time.Millisecond)
		}
	}
}

func (m *moves) pick() *datacenter { return m.dcs[m.rand.IntN(len(m.dcs))] }

// restart starts dc, configured with primary.
func (m *moves) restart(dc *datacenter, primary string) {
	if m.up[dc.name] {
		dc.stop()
	}
	dc.start(primary)
	m.up[dc.name] = true
}

// write writes documents and swaps the register in dc, as a client of its
// leader, until ctx ends.
func (m *moves) write(ctx context.Context, dc *datacenter, client int, r *rand.Rand) {
	for i := 0; ctx.Err() == nil; i++ {
		time.Sleep(time.Duration(50+r.IntN(400)) * time.Millisecond)
		manager := dc.leader()
		if manager == nil {
			continue
		}
		newer := manager.SupersededBy()
		name := fmt.Sprintf("%s-%d-%d", dc.name, client, i)
		backend := manager.Fenced(dc.store)
		stored, err := backend.Commit(ctx, resource.PutOp(newResource(m.t, docType, name, name), ""))
		if err == nil && manager.cfg.DC == newer.Datacenter {
			m.t.Errorf("%s is superseded by itself: %v", dc.name, newer)
		}
		// dc may have become the primary again, in a later epoch.
		if err == nil && stored[0].GetPrimaryEpoch() <= newer.Number {
			m.t.Errorf("%s acknowledged a write in epoch %d although it knew the epoch %v",
				dc.name, stored[0].GetPrimaryEpoch(), newer)
		}
		if err == nil {
			m.mu.Lock()
			m.acked[name] = dc.name
			m.mu.Unlock()
		}
		m.swap(ctx, dc, backend, client, name)
	}
}

// swap is the input of a compare-and-swap of the register.
type swap struct{ expect, value string }

// swapModel is the register. The output of an operation is its error.
var swapModel = porcupine.Model{
	Init: func() any { return "0" },
	Step: func(state, input, output any) (bool, any) {
		in, err := input.(swap), output
		switch {
		case err == nil:
			return state == in.expect, in.value
		case state == in.expect && errors.Is(err.(error), resource.ErrUnknownOutcome): // it may take effect
			return true, in.value
		case errors.Is(err.(error), resource.ErrUnknownOutcome):
			return true, state
		}
		return state != in.expect, state
	},
}

func (m *moves) swap(ctx context.Context, dc *datacenter, backend resource.Backend, client int, value string) {
	id := resource.ID(docType, register)
	old, err := dc.store.Read(ctx, resource.Eventual, id)
	if err != nil {
		return
	}
	var data pb.Node
	if err := old.GetData().UnmarshalTo(&data); err != nil {
		m.t.Error(err)
		return
	}
	next := newResource(m.t, docType, register, value)
	next.Id.Uid = old.GetId().GetUid()
	began := time.Now()
	_, err = backend.Commit(ctx, resource.PutOp(next, old.GetVersion()))
	if errors.Is(err, resource.ErrFederated) || errors.Is(err, context.Canceled) {
		return // not written
	}
	if errors.Is(err, resource.ErrConflict) && m.adopted(ctx, dc, old, data.Address) {
		return // the value has not changed, so the model cannot explain the conflict
	}
	op := porcupine.Operation{
		ClientId: client, Input: swap{data.Address, value}, Call: began.UnixNano(), Return: time.Now().UnixNano(),
	}
	if err != nil {
		op.Output = err
	}
	if errors.Is(err, resource.ErrUnknownOutcome) {
		op.Return = math.MaxInt64
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.swaps = append(m.swaps, op)
}

// watchOthers probes the other datacenters, as package server does for those
// that name another primary.
func (m *moves) watchOthers(ctx context.Context, dc *datacenter) {
	for ctx.Err() == nil {
		time.Sleep(3 * time.Second)
		for _, other := range m.dcs {
			if manager := dc.leader(); manager != nil && other != dc {
				manager.ProbePrimary(ctx, other.name)
			}
		}
	}
}

// settle starts and heals everything, and waits until all datacenters follow
// the primary with the highest epoch.
func (m *moves) settle() {
	m.heal()
	var last Epoch
	for _, dc := range m.dcs {
		last = highest(last, dc.manager.KnownEpoch())
	}
	for _, dc := range m.dcs {
		m.restart(dc, last.Datacenter)
	}
	for _, dc := range m.dcs {
		dc.waitPrimary(last.Datacenter)
	}
	primary := m.byName[last.Datacenter]
	primary.waitUntil("success of Writable", func() bool { return primary.manager.Writable() == nil })
	for _, dc := range m.dcs {
		if dc != primary {
			waitInSync(m.t, primary.store, dc.store)
		}
	}
}

// check fails the test if an acknowledged write is lost.
func (m *moves) check() {
	discarded := map[string]string{}
	for _, dc := range m.dcs {
		for name, address := range dc.discarded() {
			discarded[name] = address
		}
	}
	primary := m.byName[m.dcs[0].manager.PrimaryDC()]
	lost, saved := 0, 0
	for name, by := range m.acked {
		id := newResource(m.t, docType, name, "").Id
		id.Uid = ""
		_, err := primary.store.Read(m.t.Context(), resource.Eventual, id)
		switch {
		case err == nil:
		case discarded[name] != "":
			saved++
		default:
			lost++
			m.t.Errorf("document %s, which %s acknowledged, is neither in %s nor in a file: %v",
				name, by, primary.name, err)
		}
	}
	m.t.Logf("epoch %d in %s: %d writes acknowledged, %d saved, %d lost; %d swaps",
		primary.manager.Epoch(), primary.name, len(m.acked), saved, lost, len(m.swaps))
	if !m.takeOvers && saved > 0 {
		m.t.Errorf("%d writes were saved to files, want 0 without a take-over", saved)
	}
	if !m.takeOvers && porcupine.CheckOperationsTimeout(swapModel, m.swaps, 0) != porcupine.Ok {
		m.t.Errorf("%d swaps of the register are not linearizable", len(m.swaps))
		for _, op := range m.swaps {
			m.t.Logf("client %d, %d to %d ns: %+v: %v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
		}
	}
}

// adopted reports whether the register has the value that old had, in another
// version. A promotion gives each replica a new version.
func (m *moves) adopted(ctx context.Context, dc *datacenter, old *pb.Resource, value string) bool {
	now, err := dc.store.Read(ctx, resource.Eventual, old.GetId())
	if err != nil {
		return false
	}
	var data pb.Node
	if err := now.GetData().UnmarshalTo(&data); err != nil {
		m.t.Error(err)
	}
	return data.Address == value && now.GetVersion() != old.GetVersion()
}
