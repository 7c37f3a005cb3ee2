// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tlsClient opens TLS connections. Its methods block.
type tlsClient struct {
	spec       Spec
	cfg        *tls.Config
	nextSource atomic.Uint32 // index of the next source address
}

func newTLSClient(s Spec) (*tlsClient, error) {
	cfg, err := clientTLS(s.CertDir, TLSName)
	if err != nil {
		return nil, err
	}
	return &tlsClient{spec: s, cfg: cfg}, nil
}

// open opens a connection and sends the request for op. The caller closes the
// connection.
func (t *tlsClient) open(ctx context.Context, op byte) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	source := net.IPv4(127, 0, 0, byte(2+t.nextSource.Add(1)%sourceAddrs))
	d := net.Dialer{KeepAlive: -1, LocalAddr: &net.TCPAddr{IP: source}, Control: bindNoPort}
	tcp, err := d.DialContext(ctx, "tcp", t.spec.Addr)
	if err != nil {
		return nil, err
	}
	c := tls.Client(tcp, t.cfg)
	if err = c.HandshakeContext(ctx); err == nil {
		_, err = c.Write(request(op))
	}
	if err != nil {
		tcp.Close()
		return nil, fmt.Errorf("TLS handshake through %s: %w", t.spec.Addr, err)
	}
	return c, nil
}

// bindNoPort makes the kernel choose the source port at connect time. A port
// can then be used for several destinations (ip(7)).
func bindNoPort(_, _ string, raw syscall.RawConn) error {
	var optErr error
	err := raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	})
	return errors.Join(err, optErr)
}

// roundTrip opens a connection, waits for one response and closes it.
func (t *tlsClient) roundTrip(ctx context.Context, buf []byte) error {
	c, err := t.open(ctx, opRespond)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(responseTimeout))
	_, err = io.ReadFull(c, buf)
	return err
}

// runWorkers runs Conns workers and measures for Duration, starting after
// Warmup. A worker counts while measuring is true, and returns when its context
// ends.
func (t *tlsClient) runWorkers(
	ctx context.Context, work func(ctx context.Context, worker int, measuring *atomic.Bool),
) (span, error) {
	workCtx, stop := context.WithCancel(ctx)
	var (
		wg        sync.WaitGroup
		measuring atomic.Bool
	)
	defer wg.Wait()
	defer stop()
	for i := range t.spec.Conns {
		wg.Go(func() { work(workCtx, i, &measuring) })
	}
	if err := sleep(ctx, t.spec.Warmup); err != nil {
		return span{}, err
	}
	at, err := t.spec.readClocks()
	if err != nil {
		return span{}, err
	}
	measuring.Store(true)
	if err := sleep(ctx, t.spec.Duration); err != nil {
		return span{}, err
	}
	measuring.Store(false)
	return t.spec.since(at)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// connectTLS opens TLS connections one after the other in each worker, with a
// request on each, and returns their number per second and their duration.
func (s Spec) connectTLS(ctx context.Context) (Figures, error) {
	t, err := newTLSClient(s)
	if err != nil {
		return nil, err
	}
	var (
		mu        sync.Mutex
		latencies = newSamples()
		failed    int
		last      error
	)
	sp, err := t.runWorkers(ctx, func(ctx context.Context, _ int, measuring *atomic.Bool) {
		for buf := make([]byte, requestSize); ctx.Err() == nil; {
			began := time.Now()
			err := t.roundTrip(ctx, buf)
			d := time.Since(began)
			mu.Lock()
			switch {
			case ctx.Err() != nil || !measuring.Load():
			case err != nil:
				failed++
				last = err
			default:
				latencies = append(latencies, d)
			}
			stop := failed >= maxFailures
			mu.Unlock()
			if stop {
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	f := Figures{}
	f.addConnect(sp, latencies)
	return f, f.checkConnect(len(latencies), failed, last)
}

// bulkTLS receives data over Conns TLS connections at the same time, and
// returns the rate.
func (s Spec) bulkTLS(ctx context.Context) (Figures, error) {
	t, err := newTLSClient(s)
	if err != nil {
		return nil, err
	}
	conns := make([]*tls.Conn, s.Conns)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.NetConn().Close()
			}
		}
	}()
	for i := range conns {
		if conns[i], err = t.open(ctx, opSource); err != nil {
			return nil, err
		}
	}
	var bytes, failed atomic.Int64
	sp, err := t.runWorkers(ctx, func(ctx context.Context, i int, measuring *atomic.Bool) {
		defer context.AfterFunc(ctx, func() { conns[i].NetConn().Close() })()
		for buf := make([]byte, bulkSize); ; {
			n, err := conns[i].Read(buf)
			if measuring.Load() {
				bytes.Add(int64(n))
			}
			if err != nil {
				if ctx.Err() == nil {
					failed.Add(1)
				}
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	f := Figures{}
	f.addBulk(sp, bytes.Load())
	switch {
	case failed.Load() > 0:
		err = fmt.Errorf("%d bulk connections failed", failed.Load())
	case f[MBPerS] == 0:
		err = errors.New("no bulk data received")
	}
	return f, err
}
