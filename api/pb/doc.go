// SPDX-License-Identifier: MPL-2.0

// Package pb contains the gRPC messages and services of wanfed. The code is
// generated from the .proto files in this directory ("make gen").
package pb
