// SPDX-License-Identifier: MPL-2.0

// Package snapshot carries snapshots of a datacenter between files of an
// operator and a server. Package server/operator is the other end, and package
// raftstore has the format of the files.
//
//	t := snapshot.Transfer{Service: pb.NewOperatorServiceClient(cc), DC: "dc1", ...}
//	m, err := t.Save(ctx, false, "dc1.snap")
//
// # Guarantees
//
// A saved file is complete, or it does not exist. The error of Restore states
// whether nothing was changed, or the outcome is unknown.
//
// # Limits
//
// A transfer ends with an error after a minute without transferred data. After
// all data is sent, the servers have 30 minutes to restore it.
package snapshot
