// SPDX-License-Identifier: MPL-2.0

package httpapi

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// oneConn is a listener that gives one connection.
type oneConn struct {
	c    chan net.Conn
	done chan struct{}
}

func (l oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l oneConn) Close() error   { close(l.done); return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// A body that never ends holds nothing for long, whether the handler reads it or not; one that came ends no handler that takes longer.
func TestBodyIsBounded(t *testing.T) {
	const half, whole = "Host: localhost\r\nContent-Length: 4\r\n\r\nab", "Host: localhost\r\nContent-Length: 2\r\n\r\nab"
	slow := func(w http.ResponseWriter, r *http.Request) {
		if _, err := readBody(w, r); err != nil {
			writeError(w, http.StatusBadRequest, err.Error())
			return
		}
		select {
		case <-time.After(2 * bodyTimeout):
		case <-r.Context().Done():
			writeError(w, http.StatusTeapot, "the client is held to be gone")
			return
		}
		setWriteDeadline(w, writeTimeout)
		writeError(w, http.StatusOK, "done")
	}
	all := newHandler(t, newFakeSource())
	for _, tt := range []struct {
		name, request, want string
		h                   http.Handler
		open                bool
	}{
		{"not read, a read", "GET /v1/status/leader HTTP/1.1\r\n" + half, "200", all, false},
		{"not read, refused", "PUT /v1/nothing HTTP/1.1\r\n" + half, "404", all, false},
		{"read", "PUT /v1/kv/x HTTP/1.1\r\n" + half, "400", limitTime(http.HandlerFunc(slow)), false},
		{"whole, and slow to be done", "PUT /v1/kv/x HTTP/1.1\r\n" + whole, "200", limitTime(http.HandlerFunc(slow)), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := net.Pipe()
				defer client.Close()
				ln := oneConn{make(chan net.Conn, 1), make(chan struct{})}
				ln.c <- conn
				srv := &http.Server{Handler: tt.h}
				served := make(chan error, 1)
				go func() { served <- srv.Serve(ln) }()
				defer func() { srv.Close(); <-served }()
				go io.WriteString(client, tt.request)
				client.SetReadDeadline(time.Now().Add(3 * bodyTimeout))
				b, err := io.ReadAll(client)
				if !strings.HasPrefix(string(b), "HTTP/1.1 "+tt.want) || (err != nil) != tt.open {
					t.Errorf("answer %.100q, %v", b, err)
				}
			})
		})
	}
}
