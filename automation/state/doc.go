// SPDX-License-Identifier: MPL-2.0

// Package state stores the states of tasks: who may run a task, what was
// applied, and the versions of Terraform's state.
//
// # Claims
//
// A Store changes a resource of type sync/v1/State only by a compare-and-swap,
// and only for a Claim that no later claim has replaced. See package
// automation/task.
//
//	store, err := state.NewStore(state.StoreConfig{Client: client})
//	claim := state.Claim{Task: "web", Instance: id, Epoch: held.Token()}
//	st, err := store.Claim(ctx, claim)
//	...
//	st, err = store.Update(ctx, claim, func(st *pb.TaskState) error {
//		st.AppliedInputs = inputs.Digest()
//		return nil
//	})
//
// # Blocking
//
// Methods with a context block until a server has responded. While no server
// responds, they retry until the context ends, for at most RetryTime.
package state
