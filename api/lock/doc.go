// SPDX-License-Identifier: MPL-2.0

// Package lock runs a program while a lock is held, with the key-value store and
// the sessions of the HTTP API.
//
//	err := lock.Command{Client: c, Key: "backup", TTL: 15 * time.Second, Args: []string{"backup", "--all"}}.Run(ctx)
//
// A session holds the lock and is renewed while the program runs. When the
// renewals fail for the TTL, or another session has the key, the lock is lost
// and the program is terminated. The program has the environment variables
// CONSUL_LOCK_HELD=true and WANFED_LOCK_TOKEN, a number that grows with each
// holder of any lock.
//
// Key and flags are those of Consul: "consul lock" of the same key excludes this
// lock. Run joins every goroutine that it starts.
package lock
