// SPDX-License-Identifier: MPL-2.0

// Package pb contains the gRPC messages and services of wanfed. The code is
// generated from the .proto files in this directory ("make gen").
//
//	r, err := pb.NewResourceServiceClient(cc).Read(ctx, &pb.ReadRequest{Id: id})
//
// The messages are also the data of stored resources and of the Raft log.
// Servers of different versions exchange them, so field numbers, names and
// methods do not change. A new field is optional. A message in one call has at
// most api.MaxMessageSize bytes.
package pb
