// SPDX-License-Identifier: MPL-2.0

// Package pb holds the wire messages and gRPC services of wanfed, generated from the .proto files beside it ("make gen").
package pb
