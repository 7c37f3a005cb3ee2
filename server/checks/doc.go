// SPDX-License-Identifier: MPL-2.0

// Package checks runs the checks of the catalog that have a probe: it requests a
// URL, connects to a port, or calls a gRPC health service, and reports the result
// to the leader.
//
//	runner, err := checks.New(checks.Config{
//		Node: "srv1", Address: addr, Backend: store, Report: report, Logger: logger,
//	})
//	if err != nil {
//		return err
//	}
//	go runner.Run(ctx)
//
// # Who runs a check
//
// The server on whose node a check is registered runs it, as an agent of Consul
// does. No other server does, so a change of leader neither loses nor doubles a
// check. While a server is down, its checks do not run. Its node has the
// critical check catalog.ServerCheck in that time, so its services do not pass.
//
// A Runner follows the checks in the store. A check begins at a random time
// within its interval. The first result after a start of the server therefore
// arrives within one interval, and the status stays until then.
//
// # Writes
//
// A result that changes neither status nor output is not reported. The leader
// writes a changed status at once and a changed output every
// catalog.OutputInterval (see catalog.TTLMonitor). The leader also deletes
// services that are critical for too long. A report that fails is repeated until
// the next result.
//
// # Where a server connects
//
// catalog.CheckProbeAddress decides for each address to which a connection is
// made, after names are resolved. Redirects are not followed, no proxy is used,
// and no certificate is presented. Neither the body nor the header of a response
// is stored or logged. A caller who may register checks therefore learns whether
// an address responds and with which status, and nothing else.
//
// # Limits
//
// A server runs at most MaxChecks checks, and MaxRequests requests at a time.
// A check beyond the limit is reported as critical, with the reason. Each check
// has a goroutine, which Run waits for.
package checks
