// SPDX-License-Identifier: MPL-2.0

// Package session has the sessions of one datacenter, and the locks that
// sessions hold on keys. They behave as those of Consul. Package httpapi serves
// them by HTTP, and package kv locks keys.
//
// # Flow
//
// A Store creates a session, which is a resource. The leader runs a Manager,
// which keeps the deadlines of the sessions in memory. A renewal moves a
// deadline and writes nothing. A session ends when one and a half times its TTL
// has passed since its last renewal, when one of its checks is critical or
// deleted, when its node is deleted, or when it is destroyed. One commit deletes
// the session and releases or deletes its keys. A new leader gives each session
// its full time.
//
// # Locks
//
// The metadata of a key has the session that holds its lock, and the number of
// times that it was locked. A write of the value keeps both. A resource of
// LockType records each locked key by session, so that the end of a session
// finds the keys without a search. A commit that locks a key expects the session
// to exist, and the commit that ends a session expects that its locks have not
// changed. No key is therefore locked by a session that has ended.
//
// A session that ends with locked keys creates a resource of LockDelayType for
// each key. The key cannot be locked until the leader deletes the resource. The
// delay therefore continues after a change of the leader, from its beginning.
//
// # Goroutines
//
// Manager.Run uses ten goroutines, and more while sessions expire. It joins them
// before it returns. A Store starts none. All methods may be called from any
// goroutine.
//
// # Limits
//
// A session holds at most MaxLocks keys. The TTL is MinTTL to MaxTTL, and the
// lock delay at most MaxLockDelay.
package session
