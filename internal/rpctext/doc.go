// SPDX-License-Identifier: MPL-2.0

// Package rpctext removes the text that gRPC adds to errors.
//
//	rpctext.Plain("follow dc1: rpc error: code = Unavailable desc = no leader") // follow dc1: no leader
//
// gRPC wraps the error of a call into its code, and the error of a dial into a
// quoted text. The text of a nested call has both several times. Programs test
// the code of an error, and an operator needs only its cause. Texts without
// additions of gRPC do not change.
package rpctext
