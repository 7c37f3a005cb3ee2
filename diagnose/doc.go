// SPDX-License-Identifier: MPL-2.0

// Package diagnose checks a machine of a federation, before and after it joins.
// The command wanfed diagnose prints the result.
//
//	m := diagnose.ReadMachine([]string{"server.hcl"})
//	r := diagnose.Run(ctx, diagnose.Config{Machine: m, Client: client})
//	for _, f := range r.Findings {
//		fmt.Println(f.Result, f.Check, f.Cause, f.Remedy)
//	}
//
// # Flow
//
// Run reads the files of the machine, requests the status of its server, and
// probes each known path to each datacenter: TCP, TLS with the name of the
// datacenter, and an echo. It requests the status of each other datacenter
// through the local server, which has the opposite direction. Without a server,
// the checks of files, disk, ports and paths remain.
//
// The status of a server is the truth about what it knows. Its causes and
// remedies are findings without changes, and the paths that Run probes are
// described by the same function. When the probes and the status disagree, a
// fault is new: Run requests the status again until both agree, or until its
// time is over.
//
// # Guarantees
//
//   - Run returns within Limit. It joins its goroutines, except a write to a
//     disk that does not respond.
//   - The order of the findings is that of their importance: the first failure
//     is the most likely cause of the others.
//   - Run changes nothing, except for a temporary file in the data directory.
//     It listens for a moment on a port that nothing listens on.
//   - A bundle has no secret: settings that name no file or secret are listed by
//     name and value, comments are omitted, and the content of secret files is
//     replaced in all texts.
//
// # Limits
//
//   - The other direction is checked only while the local server runs.
//   - A fault of the other direction that is younger than 10 s may be missing.
//   - A datacenter that neither the status nor primary_gateways contains has no
//     known path.
package diagnose
