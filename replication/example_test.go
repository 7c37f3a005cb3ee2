// SPDX-License-Identifier: MPL-2.0

package replication_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/replication"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

// singleServer is the only server of datacenter dc1. It reaches no other
// datacenter.
type singleServer struct{}

func (singleServer) ConfiguredPrimaries() (map[string]string, []string) {
	return map[string]string{"srv1": "dc1"}, nil
}
func (singleServer) Changed() <-chan struct{}      { return nil }
func (singleServer) Known(string) bool             { return true }
func (singleServer) PathsChanged() <-chan struct{} { return nil }
func (singleServer) Disconnect(string)             {}
func (singleServer) ReplicationClient(dc string) (pb.ReplicationServiceClient, error) {
	return nil, errors.New("no path to " + dc)
}

// newIdentity issues and loads the certificate of a server, as wanfed tls does.
func newIdentity() *tlsutil.Identity {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		panic(err)
	}
	cert, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1", CA: ca})
	if err != nil {
		panic(err)
	}
	f := tlsutil.Files{CA: dir + "/ca.pem", Cert: dir + "/cert.pem", Key: dir + "/key.pem"}
	if err := errors.Join(cert.Save(f.Cert, f.Key), tlsutil.SaveCert(f.CA, ca.Cert)); err != nil {
		panic(err)
	}
	id, err := tlsutil.Load(f, tlsutil.DefaultDomain, nil)
	if err != nil {
		panic(err)
	}
	return id
}

// Serve the federated resources of a primary.
func ExampleSource() {
	registry, store := resource.NewRegistry(), resourcetest.NewStore()
	if err := errors.Join(federation.Register(registry), replication.Register(registry)); err != nil {
		panic(err)
	}
	manager, err := replication.NewPrimaryManager(replication.PrimaryManagerConfig{
		DC: "dc1", ConfiguredPrimary: "dc1", Backend: store, Registry: registry,
		Servers: singleServer{}, Remote: singleServer{}, DataDir: os.TempDir(), Identity: newIdentity(),
		Logger: slog.Default(),
	})
	if err != nil {
		panic(err)
	}
	source := replication.NewSource(manager, store)
	server := grpc.NewServer()
	pb.RegisterReplicationServiceServer(server, source)
	// In a server: run source.Run, manager.RunLeader (on the leader) and
	// server.Serve.
	fmt.Println(manager.IsPrimary(), source.Status().Followers)
	// Output: true 0
}
