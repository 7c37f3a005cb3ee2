// SPDX-License-Identifier: MPL-2.0

package proxycfg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/gateway/internal/upstream"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/broadcast"
)

// connectParams bounds the backoff of gRPC: a gateway reconnects soon after a
// server restarts.
var connectParams = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: grpcbackoff.Config{
		BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond,
	},
	MinConnectTimeout: 10 * time.Second,
})

// remote is the control plane of wanfed's servers. It calls them over gRPC.
type remote struct {
	*Client
	dialer  *upstream.Dialer
	conn    *grpc.ClientConn
	service pb.GatewayServiceClient
	dialErr error // of the last dial; nil after a success; guarded by Client.mu
	// current is true while a stream runs that has delivered a snapshot. A
	// heartbeat then confirms the snapshot. Guarded by Client.mu.
	current bool

	// own describes the certificate of the gateway, until it changes or is old. Only
	// register uses it.
	own        *pb.CertificateInUse
	ownAt      time.Time
	ownChanged []<-chan struct{}
}

// ownAge is the maximum age of remote.own. A CA expires without a change.
const ownAge = time.Minute

// certificate describes the certificate of the gateway.
func (r *remote) certificate() *pb.CertificateInUse {
	if r.own == nil || time.Since(r.ownAt) >= ownAge || slices.ContainsFunc(r.ownChanged, broadcast.IsClosed) {
		id := r.cfg.Identity
		r.ownAt, r.ownChanged = time.Now(), []<-chan struct{}{id.Changed(), id.TrustChanged()}
		r.own = api.OwnCertificate(id) // verifies the certificate
	}
	return r.own
}

func newRemote(c *Client) *remote {
	return &remote{Client: c, dialer: newDialer(c.cfg.Identity)}
}

func (r *remote) open() (err error) {
	r.conn, err = api.NewGRPCClient(r.dial, connectParams)
	r.service = pb.NewGatewayServiceClient(r.conn)
	return err
}

func (r *remote) close() {
	r.conn.Close()
	r.dialer.Wait()
}

func (r *remote) register(ctx context.Context) (time.Duration, error) {
	sent := confirmedNow()
	resp, err := r.service.Register(ctx, &pb.RegisterGatewayRequest{
		Lan: r.cfg.LAN, Wan: r.cfg.WAN, Unreachable: r.verifier.report(),
		Certificate: r.certificate(),
	})
	if err != nil {
		return 0, r.explain(err)
	}
	r.confirm(sent)
	return max(resp.GetInterval().AsDuration(), minInterval), nil
}

func (r *remote) deregister(ctx context.Context) error {
	_, err := r.service.Deregister(ctx, &pb.DeregisterGatewayRequest{Lan: r.cfg.LAN, Wan: r.cfg.WAN})
	return err
}

func (r *remote) follow(ctx context.Context) {
	retry := backoff.Backoff{Min: minBackoff, Max: maxBackoff}
	for ctx.Err() == nil {
		if err := r.watch(ctx, retry.Reset); ctx.Err() == nil {
			r.failed(cannotFollow, r.explain(err))
			backoff.Sleep(ctx, retry.Next(), nil)
		}
	}
}

// confirm records that a server responded to a request of the time at while the
// stream of snapshots runs. The stream uses the same connection, so the last
// snapshot was the newest one then.
func (r *remote) confirm(at confirmed) {
	r.mu.Lock()
	current, origin := r.current && at.oldest().After(r.status.SnapshotAt), r.status.Origin
	if current {
		r.status.SnapshotAt = at.oldest()
	}
	r.mu.Unlock()
	if current {
		r.inputs.confirm(origin, at)
	}
}

func (r *remote) setCurrent(current bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = current
}

// watch applies the snapshots of one stream until the stream fails. It calls
// received for each snapshot.
func (r *remote) watch(ctx context.Context, received func()) error {
	stream, err := r.service.Watch(ctx, &pb.WatchGatewayRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	defer r.setCurrent(false)
	for {
		snap, err := stream.Recv()
		if err != nil {
			return err
		}
		received()
		r.worked(cannotFollow)
		if err := r.checkOwn(snap); err != nil {
			return fmt.Errorf("snapshot refused: %w", err)
		}
		r.setCurrent(r.apply(snap, "server "+r.Status().Server, confirmedNow()))
	}
}

// explain returns an error of gRPC with the text of its cause.
func (r *remote) explain(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dialErr != nil && status.Code(err) == codes.Unavailable {
		return r.dialErr // err has it in quotes
	}
	return errors.New(status.Convert(err).Message())
}
