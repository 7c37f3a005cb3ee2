// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// TestGatewayProxyProtocol has a balancer in front of a gateway, and an upstream that wants to know who the client is.
func TestGatewayProxyProtocol(t *testing.T) {
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
	write(t, routes, `route "*.example" {
  to             = ["`+up.Addr().String()+`"]
  proxy_protocol = true
}`)
	gw := startCommand(t, "gateway", "--listen", "127.0.0.1:0", "--routes", routes, "--proxy-protocol", "127.0.0.1", "--access-log", access)
	c, err := net.Dial("tcp", regexp.MustCompile(`listening on (\S+),`).FindStringSubmatch(gw.line)[1])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	source := []byte{192, 0, 2, 1, 127, 0, 0, 1, 0, 7}
	hello := clientHello(t, "a.example")
	c.Write(append(append([]byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), append(source, 0, 9)...), hello...))
	c.(*net.TCPConn).CloseWrite()
	b := <-got
	if at := bytes.Index(b, source); at != 16 || !bytes.HasSuffix(b, hello) || len(b) != 28+len(hello) {
		t.Errorf("the upstream is told %d bytes: % x", len(b), b[:min(len(b), 28)])
	}
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Error(err)
	}
	gw.stop()
	if lines, err := os.ReadFile(access); err != nil || !bytes.Contains(lines, []byte(`"remote":"192.0.2.1:7","sni":"a.example"`)) {
		t.Errorf("%s, %v", lines, err)
	}
}
