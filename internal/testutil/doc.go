// SPDX-License-Identifier: MPL-2.0

// Package testutil has helpers that the tests of all packages share.
package testutil
