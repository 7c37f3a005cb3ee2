// SPDX-License-Identifier: MPL-2.0

// Package rules has the tests of rules that hold for the whole repository:
// which package imports which, file headers, and words that no text contains.
// It needs the go command. It has no product code.
package rules
