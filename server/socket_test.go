// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListenSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http.sock")
	cfg := Config{HTTPSocket: path, HTTPSocketMode: 0o620, HTTPSocketGroup: "0"}
	if os.Getuid() != 0 {
		cfg.HTTPSocketGroup = ""
	}
	ln, err := cfg.listenSocket()
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o620 {
		t.Errorf("mode of the socket = %v, %v, want 0620", st.Mode(), err)
	}
	if _, err := cfg.listenSocket(); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("listenSocket() of a socket in use = %v, want an error", err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	// A process that was killed leaves its socket.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	if ln, err = cfg.listenSocket(); err != nil {
		t.Fatalf("listenSocket() with an old socket = %v, want nil", err)
	}
	_ = ln.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.listenSocket(); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("listenSocket() of a file = %v, want an error", err)
	}
	cfg.HTTPSocketGroup = "no such group"
	if _, err := cfg.listenSocket(); err == nil || !strings.Contains(err.Error(), "no such group") {
		t.Errorf("listenSocket() with an unknown group = %v, want an error", err)
	}
}

func TestParseHTTPAddr_Plain(t *testing.T) {
	for _, tt := range []struct {
		addr    string
		tlsOnly bool
		useTLS  bool
		want    string // in the error
	}{
		{"127.0.0.1:8500", false, false, ""},
		{"127.0.0.1:8500", true, true, ""},
		{"https://10.0.0.1:8500", true, true, ""},
		{"10.0.0.1:8500", true, true, ""},
		{"10.0.0.1:8500", false, false, "is not a loopback address"},
		{"http://127.0.0.1:8500", true, false, "http_plain is false"},
	} {
		_, useTLS, err := Config{HTTPAddr: tt.addr, HTTPTLSOnly: tt.tlsOnly}.parseHTTPAddr()
		if useTLS != tt.useTLS || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("parseHTTPAddr(%s, TLS only: %v) = %v, %v, want %v, %q", tt.addr, tt.tlsOnly, useTLS, err, tt.useTLS, tt.want)
		}
	}
}
