// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcehttp"
)

// recordsOf returns a client of a datacenter's resource service, of this one's for "". What it writes elsewhere is written for the
// peer of the call's context.
func (p *parts) recordsOf(dc string) (pb.ResourceServiceClient, error) {
	if dc == "" || dc == p.cfg.DC {
		return p.resources.Client(), nil
	}
	if _, known := p.book.Load().Paths[dc]; !known {
		return nil, fmt.Errorf("%w: %s knows no datacenter %q; see: wanfed federation list", resourcehttp.ErrNoDatacenter, p.cfg.DC, dc)
	}
	return pb.NewResourceServiceClient(forCallers{p, p.calls.Reader(dc), p.calls.Writer(dc)}), nil
}

// writing are the methods that change something, or ask whether it would be allowed.
var writing = []string{
	pb.ResourceService_Write_FullMethodName, pb.ResourceService_WriteStatus_FullMethodName, pb.ResourceService_Delete_FullMethodName,
	pb.ResourceService_MutateAndValidate_FullMethodName,
}

// forCallers reads in another datacenter as this server, and writes there for its callers.
type forCallers struct {
	p           *parts
	read, write grpc.ClientConnInterface
}

// Invoke implements grpc.ClientConnInterface.
func (f forCallers) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if !slices.Contains(writing, method) {
		return f.read.Invoke(ctx, method, args, reply, opts...)
	}
	ctx, err := f.p.forCaller(ctx)
	if err != nil {
		return resource.StatusError(err)
	}
	return f.write.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (f forCallers) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return f.read.NewStream(ctx, desc, method, opts...)
}
