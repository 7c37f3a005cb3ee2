// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package reactor

import "context"

// Supported is true if this system has the system calls of the engine.
const Supported = false

// Engine is not available on this system.
type Engine struct{}

// New returns nil.
func New(Config) *Engine { return nil }

// Serve is not called.
func (*Engine) Serve(context.Context) error { return nil }
