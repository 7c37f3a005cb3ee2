// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// floorArg is the first argument of the process that runs the floor. The path
// of its file, the CA, the certificate and the key follow.
const floorArg = "run-floor"

// floorFileSize is the size of the floor's file. Writes start again at the
// beginning of the file when it is full.
const floorFileSize = 64 << 20

// floor is a server that does only what every store must do. It receives a
// write by gRPC over TLS, writes it to a file, syncs the file, sends the write
// to the watches, and responds. It does not keep, check or replicate anything.
// It syncs every write separately, so it is a bound only for a single client.
type floor struct {
	mu       sync.Mutex
	file     *os.File
	end      int64
	watchers map[chan<- []byte]bool
}

// startFloor runs this program as the floor.
func startFloor(ctx context.Context, dir string, pki *subprocess.PKI, client *tls.Config) (*contender, error) {
	files, err := pki.Issue(tlsutil.RoleServer, "dc1", "floor")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "floor")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p, err := subprocess.Start(ctx, subprocess.Config{
		Name: "floor", LogPath: filepath.Join(data, "log"),
		Command: []string{self, floorArg, filepath.Join(data, "file"), files.CA, files.Cert, files.Key},
		Ready:   func(line string) bool { return strings.HasPrefix(line, "127.0.0.1:") },
	})
	if err != nil {
		return nil, err
	}
	config := client.Clone()
	config.ServerName = "server.dc1." + domain
	c := &contender{name: "floor", Process: p, addr: p.Line(), tls: config, put: wanfedPut, watch: wanfedWatch}
	return c, c.awaitWrites(ctx)
}

// runFloorIfRequested runs the floor and exits if the arguments of this process
// request it.
func runFloorIfRequested() {
	if len(os.Args) != 6 || os.Args[1] != floorArg {
		return
	}
	err := serveFloor(os.Args[2], tlsutil.Files{CA: os.Args[3], Cert: os.Args[4], Key: os.Args[5]})
	fmt.Fprintln(os.Stderr, "floor:", err)
	os.Exit(1)
}

// serveFloor serves until the process is killed.
func serveFloor(path string, files tlsutil.Files) error {
	conf, err := clientTLS(files)
	if err != nil {
		return err
	}
	conf.ClientCAs, conf.ClientAuth = conf.RootCAs, tls.RequireAndVerifyClientCert
	f := &floor{watchers: make(map[chan<- []byte]bool)}
	if f.file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := preallocate(f.file, floorFileSize); err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", floorFileSize, path, err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := f.server(conf)
	fmt.Println(ln.Addr())
	return s.Serve(ln)
}

// server returns a gRPC server with the two methods of wanfed that the floor
// supports.
func (f *floor) server(conf *tls.Config) *grpc.Server {
	s := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.Creds(credentials.NewTLS(conf)))
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "wanfed.v1.ResourceService", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Write", Handler: f.write}},
		Streams: []grpc.StreamDesc{{StreamName: "WatchList", Handler: f.watch, ServerStreams: true}},
	}, f)
	return s
}

func (f *floor) write(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var b []byte
	if err := decode(&b); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end+int64(len(b)) > floorFileSize {
		f.end = 0
	}
	if _, err := f.file.WriteAt(b, f.end); err != nil {
		return nil, err
	}
	f.end += int64(len(b))
	if err := syncData(f.file); err != nil {
		return nil, err
	}
	for c := range f.watchers {
		c <- b
	}
	return &b, nil
}

// watch serves a watch: the end of an empty snapshot, and then each write until
// the stream ends.
func (f *floor) watch(_ any, stream grpc.ServerStream) error {
	c := make(chan []byte, 1)
	f.mu.Lock()
	f.watchers[c] = true
	f.mu.Unlock()
	defer func() {
		ended := make(chan struct{})
		go func() { // a write may be sending to c
			defer close(ended)
			for range c {
			}
		}()
		f.mu.Lock()
		delete(f.watchers, c)
		f.mu.Unlock()
		close(c)
		<-ended
	}()
	end := bytesField(nil, 3, nil) // end of the snapshot
	if err := stream.SendMsg(&end); err != nil {
		return err
	}
	for {
		select {
		case b := <-c:
			if err := stream.SendMsg(&b); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}
