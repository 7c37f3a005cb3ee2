// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/wanfed/wanfed/wanfed"
)

// raftStream carries Raft over the server port. Raft's addresses are node names; the address book knows where they are, so
// a server may change its address.
type raftStream struct {
	net.Listener
	dc     string
	dialer *wanfed.Dialer
}

// Dial implements raft.StreamLayer.
func (s raftStream) Dial(node raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := s.dialer.Dial(ctx, wanfed.Target{DC: s.dc, Node: string(node)}, wanfed.ProtoRaft)
	if err != nil {
		return nil, err
	}
	return c, nil
}
