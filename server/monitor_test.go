// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

func TestMonitor_ServerIsReady(t *testing.T) {
	files := tlstest.NewCA(t).Files(t, tlsutil.RoleServer, "srv1", "dc1")
	p, addrs := startServer(t, Config{
		DC: "dc1", Node: "srv1", DataDir: t.TempDir(), CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key,
		MonitorAddr: "127.0.0.1:0",
	})
	defer p.end(t)
	get := func(path string) (int, io.ReadCloser) {
		resp, err := http.Get(addrs.Monitor + path)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Body
	}
	testutil.Await(t, startTimeout, "the server is ready", func(context.Context) error {
		status, body := get("/readyz")
		defer body.Close()
		text, err := io.ReadAll(body)
		if err == nil && status != http.StatusOK {
			err = errors.New(string(text))
		}
		return err
	})
	_, body := get("/metrics")
	defer body.Close()
	problems, err := promlint.New(body).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("Lint() = %v, %v, want no problem", problems, err)
	}
	http.DefaultClient.CloseIdleConnections()
}
