// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/catalog"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/server/rpc"
)

func (p *parts) buildChecks() (err error) {
	p.reports, err = catalog.NewTTLMonitor(p.store, p.logger)
	return err
}

// report has the leader take what is said of a check, for the caller of ctx.
func (p *parts) report(ctx context.Context, rep catalog.CheckUpdate) error {
	if p.store.IsLeader() {
		return p.reports.Update(ctx, rep)
	}
	node, ok := p.store.Leader()
	if !ok || node == p.cfg.Node {
		return resource.ErrNotLeader
	}
	who, err := rpc.Peer(ctx)
	if err != nil {
		return err
	}
	cc, err := p.calls.Server(node)
	if err != nil {
		return err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, api.OnBehalfKey, who.String())
	_, err = pb.NewCheckServiceClient(cc).Report(ctx, &pb.CheckReportRequest{
		Node: rep.Node, CheckId: rep.CheckID, Status: rep.Status, Output: rep.Output,
	})
	return resource.FromStatus(err)
}

// checkService is what followers ask their leader, and operators any server.
type checkService struct {
	pb.UnimplementedCheckServiceServer
	resources *resource.Service
	reports   *catalog.TTLMonitor
}

func (s *checkService) Report(ctx context.Context, req *pb.CheckReportRequest) (*pb.CheckReportResponse, error) {
	err := s.resources.Allow(ctx, resource.VerbWrite, catalog.CheckType)
	if err == nil {
		err = s.reports.Update(ctx, catalog.CheckUpdate{
			Node: req.GetNode(), CheckID: req.GetCheckId(), Status: req.GetStatus(), Output: req.GetOutput(),
		})
	}
	if err != nil {
		return nil, resource.StatusError(err)
	}
	return &pb.CheckReportResponse{}, nil
}
