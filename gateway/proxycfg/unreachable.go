// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/netaddr"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

const (
	// verifyInterval is the average time between two probes of a gateway that
	// works. A probe costs a TLS handshake at both ends. Between two probes, TCP
	// connections check that the gateway can be dialed.
	verifyInterval = 2 * time.Minute
	// checkInterval is the average time between two checks of a gateway. A gateway
	// that cannot be dialed is in the status within 10 s: up to 2.5 s to the next
	// check, checkTimeout, 2.5 s for a probe, and 1 s for the report.
	checkInterval, checkJitter = 2000 * time.Millisecond, 500 * time.Millisecond
	// checkPace replaces checkInterval with more than 20 gateways, and bounds the
	// cost. A check costs about 0.04 ms of processor time at both ends together.
	checkPace = 100 * time.Millisecond
	// checkTimeout bounds a check. A check that is late, because a packet was lost
	// or the path is long, costs a probe.
	checkTimeout = 600 * time.Millisecond
	// verifyPace is the average time between two probes of working gateways. It
	// replaces verifyInterval with many gateways, and bounds the cost.
	verifyPace = 2500 * time.Millisecond
	// verifyJitter is the largest difference from the average, as a fraction.
	verifyJitter = 0.25
	// firstVerify is the longest time to the first probe, for one gateway. The
	// first probes of many gateways are spread over more time.
	firstVerify, firstVerifyEach = 2 * time.Second, 100 * time.Millisecond
	// connectTimeout bounds one connection of a probe. It covers a lost packet in
	// TCP and another one in TLS.
	connectTimeout = 4 * time.Second
	// attemptTimeout bounds TCP. It covers one retransmission, after 1 s.
	attemptTimeout = 2 * time.Second
	// connectPause is the time from the start of a probe to its second
	// connection. The probe fails if both fail. On a link that loses 1 % of the
	// packets one connection fails about once in 2,000 times.
	connectPause = 500 * time.Millisecond
	// failedPause is the pause between two probes of a reported gateway. A fault
	// that has ended is thus visible within 5 s. It is also the shortest pause
	// before a probe that a failed connection makes due.
	failedPause, failedJitter = 3 * time.Second, 500 * time.Millisecond
	// maxVerifying bounds concurrent probes. Each has up to two connections.
	maxVerifying = 8
	// maxUnreachable bounds the gateways in a report.
	maxUnreachable = 16
	// alertNoProtocol is the alert of a gateway that does not forward the
	// protocol of the probes (RFC 7301 section 3.2).
	alertNoProtocol = 120
)

// verifier finds gateways of other datacenters to which the local gateway
// cannot connect although it can connect to another gateway of the same
// datacenter. It probes only healthy gateways, and only datacenters that have
// several of them. Servers notice by themselves that no gateway of a datacenter
// works.
type verifier struct {
	connect func(ctx context.Context, t verifyTarget) wanfed.FailureClass // "": worked
	check   func(ctx context.Context, t verifyTarget) bool                // reports whether addr can be dialed
	changed func()                                                        // called after each change of the report
	log     *slog.Logger
	slots   chan struct{} // one for each running probe

	mu      sync.Mutex
	targets map[verifyTarget]*verified
	reports []*pb.UnreachableGateway // immutable
}

type verifyTarget struct {
	dc, addr string
	refuse   netaddr.Class // see Datacenter.Refuse
}

// verified is the state of one gateway. verifier.mu guards it.
type verified struct {
	verifyTarget
	stop     context.CancelFunc
	due      chan struct{} // size 1: see makeDue
	class    wanfed.FailureClass
	failedAt time.Time // of the first failed probe after workedAt; zero: none
	workedAt time.Time // zero: never
}

func newVerifier(
	connect func(ctx context.Context, t verifyTarget) wanfed.FailureClass,
	check func(ctx context.Context, t verifyTarget) bool, changed func(), log *slog.Logger,
) *verifier {
	return &verifier{
		connect: connect, check: check, changed: changed, log: log, slots: make(chan struct{}, maxVerifying),
		targets: map[verifyTarget]*verified{},
	}
}

// run probes the gateways in the current snapshot until ctx ends, and joins its
// goroutines.
func (v *verifier) run(ctx context.Context, snapshot func() (*Snapshot, <-chan struct{})) {
	var probes sync.WaitGroup
	defer probes.Wait()
	for {
		snap, changed := snapshot()
		v.setTargets(ctx, snap, &probes)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// setTargets starts probes of the new gateways in a snapshot and stops probes of
// former ones.
func (v *verifier) setTargets(ctx context.Context, snap *Snapshot, probes *sync.WaitGroup) {
	defer v.updateReport()
	v.mu.Lock()
	defer v.mu.Unlock()
	want := map[verifyTarget]bool{}
	if snap != nil {
		for _, d := range snap.Datacenters {
			for _, addr := range d.Gateways[:d.Current] {
				want[verifyTarget{d.DC, addr, d.Refuse[addr]}] = d.Current > 1
			}
		}
	}
	for k, t := range v.targets {
		if !want[k] {
			t.stop()
			delete(v.targets, k)
		}
	}
	for k, several := range want {
		if v.targets[k] == nil && several {
			t := &verified{verifyTarget: k, due: make(chan struct{}, 1)}
			ctx, stop := context.WithCancel(ctx)
			t.stop = stop
			v.targets[k] = t
			first := max(firstVerify, time.Duration(len(want))*firstVerifyEach)
			probes.Go(func() { v.verify(ctx, t, first/2+rand.N(first/2)) })
		}
	}
}

// verify probes a gateway until ctx ends, the first time after a pause.
func (v *verifier) verify(ctx context.Context, t *verified, pause time.Duration) {
	var probed time.Time // the end of the last probe
	for {
		if v.waitDue(ctx, t, pause) {
			backoff.Sleep(ctx, min(pause, failedPause)-time.Since(probed), nil)
		}
		select {
		case v.slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return
		}
		class := v.probe(ctx, t.verifyTarget)
		<-v.slots
		if ctx.Err() != nil {
			return
		}
		probed = time.Now()
		pause = v.record(t, class, probed)
	}
}

// waitDue blocks until the next probe of a gateway, which is due after pause. It
// returns true if the probe is due earlier, because a connection or a check has
// failed.
func (v *verifier) waitDue(ctx context.Context, t *verified, pause time.Duration) (early bool) {
	for end := time.Now().Add(pause); ; {
		left, next := time.Until(end), v.nextCheck()
		if backoff.Sleep(ctx, min(left, next), t.due) {
			return true
		}
		if left <= next || ctx.Err() != nil {
			return false
		}
		if !v.check(ctx, t.verifyTarget) {
			return true
		}
	}
}

// nextCheck returns the time to the next check of a gateway.
func (v *verifier) nextCheck() time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	average := max(checkInterval, time.Duration(len(v.targets))*checkPace)
	return average - checkJitter + rand.N(2*checkJitter)
}

// probe connects to a gateway, and a second time if the first connection does not
// work within connectPause. It returns the class of the last failure, or "" as
// soon as a connection works.
func (v *verifier) probe(ctx context.Context, t verifyTarget) (class wanfed.FailureClass) {
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	results := make(chan wanfed.FailureClass, 2)
	connect := func() { results <- v.connect(ctx, t) }
	conns.Go(connect)
	second := time.NewTimer(connectPause)
	defer second.Stop()
	for failed := 0; failed < cap(results); {
		select {
		case <-second.C:
			conns.Go(connect)
		case class = <-results:
			if failed++; class == "" {
				return ""
			}
		case <-ctx.Done():
			return wanfed.FailureOther
		}
	}
	return class
}

// record records the result of a probe and returns the time to the next one.
func (v *verifier) record(t *verified, class wanfed.FailureClass, now time.Time) time.Duration {
	defer v.updateReport()
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.class = class; class == "" {
		t.failedAt, t.workedAt = time.Time{}, now
		average := max(verifyInterval, time.Duration(len(v.targets))*verifyPace)
		return time.Duration((1 - verifyJitter + 2*verifyJitter*rand.Float64()) * float64(average))
	}
	if t.failedAt.IsZero() {
		t.failedAt = now
		v.verifyOthersLocked(t)
	}
	return failedPause + rand.N(failedJitter)
}

// verifyOthersLocked makes the probes of the other gateways of a datacenter due.
// They show whether only t fails.
func (v *verifier) verifyOthersLocked(t *verified) {
	for _, other := range v.targets {
		if other != t && other.dc == t.dc && !other.workedAt.After(t.failedAt) {
			other.makeDue()
		}
	}
}

// dialFailed makes the probe of the gateway at addr due. A failure of the data
// plane is only a hint: the connection may have been late.
func (v *verifier) dialFailed(addr string) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range v.targets {
		if t.addr == addr {
			t.makeDue()
		}
	}
}

// makeDue makes the next probe due now, or failedPause after the last one.
func (t *verified) makeDue() {
	select {
	case t.due <- struct{}{}:
	default:
	}
}

// updateReport computes the report and announces a change.
func (v *verifier) updateReport() {
	added, changed := v.computeReport()
	for _, g := range added {
		v.log.Warn("cannot connect to a gateway of another datacenter, whose other gateways work",
			"peer_dc", g.Datacenter, "addr", g.Address, "reason", g.Class)
	}
	if changed {
		v.changed()
	}
}

// computeReport computes the report. It returns the gateways that are new in it.
func (v *verifier) computeReport() (added []*pb.UnreachableGateway, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	worked := map[string]time.Time{} // last success of any gateway, by datacenter
	for _, t := range v.targets {
		if t.workedAt.After(worked[t.dc]) {
			worked[t.dc] = t.workedAt
		}
	}
	var next []*pb.UnreachableGateway
	for _, t := range v.targets {
		if !t.failedAt.IsZero() && worked[t.dc].After(t.failedAt) {
			next = append(next, &pb.UnreachableGateway{Datacenter: t.dc, Address: t.addr, Class: string(t.class)})
		}
	}
	slices.SortFunc(next, func(a, b *pb.UnreachableGateway) int {
		return cmp.Or(cmp.Compare(a.Datacenter, b.Datacenter), cmp.Compare(a.Address, b.Address))
	})
	next = next[:min(len(next), maxUnreachable)]
	same := func(a, b *pb.UnreachableGateway) bool { return proto.Equal(a, b) }
	if slices.EqualFunc(next, v.reports, same) {
		return nil, false
	}
	added = slices.DeleteFunc(slices.Clone(next), func(g *pb.UnreachableGateway) bool {
		return slices.ContainsFunc(v.reports, func(old *pb.UnreachableGateway) bool { return same(old, g) })
	})
	v.reports = next
	return added, true
}

// report returns the gateways that cannot be dialed. The caller must not change
// the result.
func (v *verifier) report() []*pb.UnreachableGateway {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reports
}

// checkGateway connects to t over TCP and closes the connection, as a health
// check of a load balancer does. It reports whether the connection worked.
func checkGateway(ctx context.Context, t verifyTarget) bool {
	d := net.Dialer{Timeout: checkTimeout, Control: netaddr.Control(t.refuse)}
	c, err := d.DialContext(ctx, "tcp", t.addr)
	if err != nil {
		return false
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // no port stays in the state TIME_WAIT
	}
	_ = c.Close()
	return true
}

// connectGateway connects to a server of a datacenter through one of its gateways.
// It returns the class of the failure, or "".
func connectGateway(ctx context.Context, id *tlsutil.Identity, t verifyTarget) wanfed.FailureClass {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	book := &wanfed.SharedAddressBook{}
	book.Store(&wanfed.AddressBook{Paths: map[string][]wanfed.Path{t.dc: {{Addr: t.addr, Refuse: t.refuse}}}})
	d, err := wanfed.NewDialer(wanfed.DialerConfig{
		Identity: id, AddressBook: book, AttemptTimeout: attemptTimeout,
	})
	if err != nil {
		return wanfed.FailureOther
	}
	conn, err := d.Dial(ctx, wanfed.Target{DC: t.dc}, wanfed.ProtoGRPC)
	if err == nil {
		conn.Close()
		return ""
	}
	if alert, ok := tlsutil.AlertOf(err); ok && alert == alertNoProtocol {
		return "" // a gateway has responded
	}
	return cmp.Or(d.PathsTo(t.dc)[0].Failure, wanfed.FailureOther)
}
