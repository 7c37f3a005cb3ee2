// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
)

var quiet = slog.New(slog.DiscardHandler)

// handshake performs a TLS handshake as a client. It closes raw if that fails.
func handshake(ctx context.Context, raw net.Conn, cfg *tls.Config) (net.Conn, error) {
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	return c, nil
}
