// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/tlsutil"
)

// contender is a running store under test.
type contender struct {
	name string
	*subprocess.Process
	addr string
	tls  *tls.Config

	// put returns the gRPC method and the message of a write.
	put func(key string, value []byte) (path string, message []byte)
	// get does one read. It is nil for the floor.
	get func(ctx context.Context, cc *grpc.ClientConn, key string, strong bool) error
	// watch starts watches of one key on a connection, and returns when the
	// connection ends. It calls ready when a watch has started, and event for
	// each change that a watch receives.
	watch func(w *watcher, key string, watches int, ready, event func(n int)) error
}

// isFloor reports whether the contender is the floor, which supports no reads.
func (c *contender) isFloor() bool { return c.get == nil }

func (c *contender) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+c.addr, grpc.WithTransportCredentials(credentials.NewTLS(c.tls)),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})), grpc.WithReadBufferSize(64<<10))
}

const (
	domain       = "wanfed"
	startTimeout = 20 * time.Second
	writePath    = "/wanfed.v1.ResourceService/Write"
	readPath     = "/wanfed.v1.ResourceService/Read"
	watchPath    = "/wanfed.v1.ResourceService/WatchList"
	entryURL     = "type.googleapis.com/wanfed.v1.KVEntry"
)

var entryType = &pb.Type{Group: "kv", GroupVersion: "v1", Kind: "Entry"}

func startWanfed(
	ctx context.Context, program, dir string, pki *subprocess.PKI, client *tls.Config,
) (*contender, error) {
	files, err := pki.Issue(tlsutil.RoleServer, "dc1", "srv1")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s, err := subprocess.StartServer(ctx, subprocess.ServerConfig{
		Program: []string{program}, Dir: filepath.Join(dir, "wanfed"), DC: "dc1", Node: "srv1", TLS: files,
		LogLevel: "warn",
	})
	if err != nil {
		return nil, err
	}
	config := client.Clone()
	config.ServerName = "server.dc1." + domain
	c := &contender{
		name: "wanfed", Process: s.Process, addr: s.Addr, tls: config,
		put: wanfedPut, get: wanfedGet, watch: wanfedWatch,
	}
	return c, c.awaitWrites(ctx)
}

// clientTLS returns a TLS configuration with the operator's certificate. The
// caller sets the server name.
func clientTLS(f tlsutil.Files) (*tls.Config, error) {
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("no certificate in " + f.CA)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}, nil
}

// awaitWrites returns when the contender accepts writes.
func (c *contender) awaitWrites(ctx context.Context) error {
	cc, err := c.dial()
	if err != nil {
		return err
	}
	defer cc.Close()
	for {
		err := c.write(ctx, cc, "ready", []byte("x"))
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// write does one write.
func (c *contender) write(ctx context.Context, cc *grpc.ClientConn, key string, value []byte) error {
	path, message := c.put(key, value)
	return cc.Invoke(ctx, path, &message, discard{})
}

func wanfedPut(key string, value []byte) (path string, message []byte) {
	return writePath, mustMarshal(&pb.WriteRequest{Resource: &pb.Resource{
		Id:   &pb.ID{Type: entryType, Name: key},
		Data: &anypb.Any{TypeUrl: entryURL, Value: mustMarshal(&pb.KVEntry{Value: value})},
	}})
}

// mustMarshal encodes m. It panics if a string of m is not UTF-8, which never
// happens here.
func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func wanfedGet(ctx context.Context, cc *grpc.ClientConn, key string, strong bool) error {
	req := mustMarshal(&pb.ReadRequest{Id: &pb.ID{Type: entryType, Name: key}})
	if strong {
		ctx = metadata.AppendToOutgoingContext(ctx, resource.ConsistencyKey, "consistent")
	}
	return cc.Invoke(ctx, readPath, &req, discard{})
}

func wanfedWatch(w *watcher, key string, watches int, ready, event func(n int)) error {
	req := mustMarshal(&pb.WatchListRequest{Type: entryType, NamePrefix: key})
	sent := make(chan error, 1)
	go func() {
		for range watches {
			if _, err := w.open(watchPath, req, true); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	started := make(map[uint32]bool, watches)
	err := w.read(func(stream uint32, message []byte) {
		if started[stream] {
			event(1)
		} else if _, end := countFields(message, 1, 3); end { // 3: end_of_snapshot
			started[stream] = true
			ready(1)
		}
	})
	return errors.Join(err, <-sent)
}

func startEtcd(ctx context.Context, program, dir string, pki *subprocess.PKI, client *tls.Config) (*contender, error) {
	files, err := pki.Issue(tlsutil.RoleServer, "dc1", "etcd")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	self, peer := "https://"+ports[0], "http://"+ports[1]
	data := filepath.Join(dir, "etcd")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name: "etcd", LogPath: filepath.Join(data, "log"),
		Command: []string{
			program, "--name", "a", "--data-dir", filepath.Join(data, "data"), "--logger", "zap",
			"--log-outputs", "stdout",
			"--listen-client-urls", self, "--advertise-client-urls", self, "--listen-peer-urls", peer,
			"--initial-advertise-peer-urls", peer, "--initial-cluster", "a=" + peer, "--quota-backend-bytes",
			"8589934592",
			"--cert-file", files.Cert, "--key-file", files.Key, "--trusted-ca-file", files.CA, "--client-cert-auth",
		},
		Ready: func(line string) bool { return strings.Contains(line, "serving client") },
	})
	if err != nil {
		return nil, err
	}
	config := client.Clone()
	config.ServerName = "localhost"
	c := &contender{name: "etcd", Process: p, addr: ports[0], tls: config, put: etcdPut, get: etcdGet, watch: etcdWatch}
	return c, c.awaitWrites(ctx)
}

func freePorts(n int) ([]string, error) {
	var all []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all, nil
}

// The messages of the etcd API (rpc.proto) that the benchmark needs, encoded by
// field number.

func etcdPut(key string, value []byte) (path string, message []byte) {
	return "/etcdserverpb.KV/Put", bytesField(bytesField(nil, 1, []byte(key)), 2, value)
}

func etcdGet(ctx context.Context, cc *grpc.ClientConn, key string, strong bool) error {
	req := bytesField(nil, 1, []byte(key))
	if !strong {
		req = varintField(req, 7, 1) // serializable
	}
	return cc.Invoke(ctx, "/etcdserverpb.KV/Range", &req, discard{})
}

func etcdWatch(w *watcher, key string, watches int, ready, event func(n int)) error {
	create := bytesField(nil, 1, bytesField(nil, 1, []byte(key)))
	stream, err := w.open("/etcdserverpb.Watch/Watch", create, false)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		for range watches - 1 {
			if err := w.send(stream, create); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	err = w.read(func(_ uint32, message []byte) {
		events, created := countFields(message, 11, 3) // fields events and created of WatchResponse
		if created {
			ready(1)
		}
		if events > 0 {
			event(events)
		}
	})
	return errors.Join(err, <-sent)
}
