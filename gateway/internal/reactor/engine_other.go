// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package reactor

import "context"

// Engine is not available on this system.
type Engine struct{}

// New returns nil: the engine works on Linux only.
func New(Config) *Engine { return nil }

// Serve is not called.
func (*Engine) Serve(context.Context) error { return nil }
