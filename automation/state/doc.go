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
// # Versions of Terraform's state
//
// Put compresses a state with gzip, encrypts it with AES-256-GCM, and stores it
// as chunks of at most 1 MiB. Each chunk is authenticated with the task, the
// number of the version, its index and the number of chunks, so servers can
// neither read a state nor exchange parts of it. They know its size, serial and
// lineage. The chunks are stored before the version that names them. Get returns
// exactly what was stored, or an error.
//
// The names of the chunks are random, and a version never shares one. A daemon
// that dies during Put leaves chunks, which Collect deletes.
//
// # Rotation
//
// The first key of the key file encrypts, and all keys decrypt. To replace a
// key, add a new one with GenerateKey, and copy the file to all daemons and
// operators. Then call UseNewestKey, and copy the file again. In between, a daemon
// with either file reads what the others store. A daemon reads the file for each
// version, so it needs no restart. An old key can be removed when no version has
// its id: see "wanfed task state versions".
//
// # Backend
//
// A Backend serves Terraform's backend "http" on the loopback.
//
//	backend, err := state.NewBackend(state.BackendConfig{Store: store, Listener: ln, Dir: dir})
//	err = backend.Replay(ctx) // before the first claim
//	go backend.Run(ctx)
//	...
//	env, end := backend.Open(ctx, claim, runID)
//	defer end() // after all processes of the run have ended
//
// While no server responds, a request of Terraform waits for up to a minute. A
// state that Terraform has sent is then in an encrypted file, and the Backend
// stores it as soon as a server responds, or at the next start. A state that is
// refused, because the claim was taken over, stays in a file too, and Terraform
// writes errored.tfstate. Keep writes a state that Import refuses as superseded to
// such a file. Kept returns the files, which an operator removes.
//
// # Blocking
//
// Methods with a context block until a server has responded. While no server
// responds, they retry until the context ends, for at most RetryTime.
package state
