// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A gateway reads the PROXY header of a load balancer, and sends the address of
// the client in a PROXY header to the upstream.
func TestGateway_ProxyProtocol(t *testing.T) {
	up, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	got := make(chan []byte, 1)
	go func() {
		c, err := up.Accept()
		if err != nil {
			close(got)
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		got <- b
	}()
	routes, access := filepath.Join(t.TempDir(), "routes.hcl"), filepath.Join(t.TempDir(), "access.json")
	writeFile(t, routes, `route "*.example" {
  to             = ["`+up.Addr().String()+`"]
  proxy_protocol = true
}`)
	gw := startCommand(t, "gateway", "--listen", "127.0.0.1:0", "--routes", routes,
		"--proxy-protocol", "127.0.0.1", "--access-log", access)
	c, err := net.Dial("tcp", gw.addr(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	// The source address, the destination address and the source port.
	source := []byte{192, 0, 2, 1, 127, 0, 0, 1, 0, 7}
	hello := clientHello(t, "a.example")
	header := append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), append(source, 0, 9)...)
	c.Write(append(header, hello...))
	c.(*net.TCPConn).CloseWrite()
	b := <-got
	if at := bytes.Index(b, source); at != 16 || !bytes.HasSuffix(b, hello) || len(b) != 28+len(hello) {
		t.Errorf("upstream received %d bytes, % x, want a header of 28 bytes with the source at 16, and the hello",
			len(b), b[:min(len(b), 28)])
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read() after the end of the upstream = %v, want %v", err, io.EOF)
	}
	gw.stop()
	lines, err := os.ReadFile(access)
	if want := `"remote":"192.0.2.1:7","sni":"a.example"`; err != nil || !bytes.Contains(lines, []byte(want)) {
		t.Errorf("access log = %s, %v, want it to contain %s", lines, err, want)
	}
}
