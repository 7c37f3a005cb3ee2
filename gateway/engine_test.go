// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"runtime"
	"testing"
)

// engineKind names an engine.
type engineKind string

const (
	portable    engineKind = "portable"
	eventDriven engineKind = "reactor"
)

// engines are the engines of this system.
var engines = func() []engineKind {
	if runtime.GOOS == "linux" {
		return []engineKind{portable, eventDriven}
	}
	return []engineKind{portable}
}()

// suite has the tests that every engine must pass, over real sockets.
var suite = []struct {
	name string
	f    func(*testing.T, engineKind)
}{
	{"ForwardBySNI", testForwardBySNI},
	{"Protocols", testProtocols},
	{"RefuseOwnListener", testRefuseOwnListener},
	{"CutHello", testCutHello},
	{"HelloInPieces", testHelloInPieces},
	{"RefusalsAreLogged", testRefusalsAreLogged},
	{"BulkBothWays", testBulkBothWays},
	{"ResetIsPassedOn", testResetIsPassedOn},
	{"SetTableKeepsConnections", testSetTableKeepsConnections},
	{"Limit", testLimit},
	{"StopDrains", testStopDrains},
	{"NextWhenNoAnswer", testNextWhenNoAnswer},
	{"AlertIsAnAnswer", testAlertIsAnAnswer},
	{"NoReplayOfData", testNoReplayOfData},
	{"ClientDisconnectsWhileWaiting", testClientDisconnectsWhileWaiting},
	{"AllUpstreamsFail", testAllUpstreamsFail},
	{"LongAnswer", testLongAnswer},
	{"HelloTimeout", testHelloTimeout},
	{"ShedSilentConnection", testShedSilentConnection},
	{"NamesAndIPv6", testNamesAndIPv6},
	{"NewTableWhileWaiting", testNewTableWhileWaiting},
	{"SilentUpstreamRecovers", testSilentUpstreamRecovers},
	{"DrainEnds", testDrainEnds},
	{"SlowReader", testSlowReader},
	{"ConcurrentEnds", testConcurrentEnds},
	{"ClientResetWhileWaiting", testClientResetWhileWaiting},
	{"ResetOfClientIsPassedOn", testResetOfClientIsPassedOn},
	{"SourcesOfConnections", testSourcesOfConnections},
	{"SourceRate", testSourceRate},
	{"UnfinishedHellos", testUnfinishedHellos},
	{"SetMaxConns", testSetMaxConns},
	{"SetDrain", testSetDrain},
	{"AccessLog", testAccessLog},
	{"ResetAfterClose", testResetAfterClose},
	{"Histograms", testHistograms},
	{"CutAnswer", testCutAnswer},
	{"CutAfterEachByte", testCutAfterEachByte},
	{"HelloMemory", testHelloMemory},
	{"HelloMemoryWhileDialing", testHelloMemoryWhileDialing},
	{"CircuitBreaker", testCircuitBreaker},
	{"MaxPerUpstream", testMaxPerUpstream},
	{"LeastConnections", testLeastConnections},
	{"ProxyProtocolIn", testProxyProtocolIn},
	{"ProxyProtocolOut", testProxyProtocolOut},
	{"ProxyTo", testProxyTo},
	{"Loop", testLoop},
}

func TestEngines(t *testing.T) {
	for _, e := range engines {
		t.Run(string(e), func(t *testing.T) {
			for _, s := range suite {
				t.Run(s.name, func(t *testing.T) { s.f(t, e) })
			}
		})
	}
}
