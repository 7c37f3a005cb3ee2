// SPDX-License-Identifier: MPL-2.0

// Package testutil has the few helpers that tests of all packages share.
package testutil
