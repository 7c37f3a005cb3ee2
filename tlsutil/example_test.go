// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"

	"github.com/wanfed/wanfed/tlsutil"
)

// Create a CA and a certificate for a server, and load the files.
func ExampleLoad() {
	dir, err := os.MkdirTemp("", "wanfed")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		panic(err)
	}
	cert, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1", CA: ca})
	if err != nil {
		panic(err)
	}
	files := tlsutil.Files{
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "srv1.pem"), Key: filepath.Join(dir, "srv1-key.pem"),
	}
	if err := ca.Save(files.CA, filepath.Join(dir, "ca-key.pem")); err != nil {
		panic(err)
	}
	if err := cert.Save(files.Cert, files.Key); err != nil {
		panic(err)
	}

	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, nil)
	if err != nil {
		panic(err)
	}
	fmt.Println(id.Peer())
	// Output: server/dc1/srv1
}

func ExampleParseName() {
	p, ok := tlsutil.ParseName("srv1.server.dc1.wanfed", "wanfed")
	fmt.Println(p.Role, p.Node, p.DC, ok)
	// Output: server srv1 dc1 true
}

func ExampleDescribeError() {
	fmt.Println(tlsutil.DescribeError(x509.UnknownAuthorityError{}))
	// Output: certificate of the peer is signed by another CA (unknown)
}
