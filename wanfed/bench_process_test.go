// SPDX-License-Identifier: MPL-2.0

package wanfed_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/wanfed/wanfed/gateway"
)

// gatewayEnv is an environment variable with routes as JSON. If the variable is
// set, this test binary runs a gateway with these routes instead of tests.
const gatewayEnv = "WANFED_TEST_GATEWAY"

func TestMain(m *testing.M) {
	if spec := os.Getenv(gatewayEnv); spec != "" {
		if err := gatewayMain(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// gatewayProcess is a gateway in a separate process.
type gatewayProcess struct {
	addr string
	in   io.Writer
	out  *bufio.Reader
}

func startGatewayProcess(tb testing.TB, routes []gateway.Route) *gatewayProcess {
	tb.Helper()
	spec, err := json.Marshal(routes)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), gatewayEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close() // stops the gateway
		if err := cmd.Wait(); err != nil {
			tb.Error(err)
		}
	})
	g := &gatewayProcess{in: in, out: bufio.NewReader(out)}
	if _, err := fmt.Fscanln(g.out, &g.addr); err != nil {
		tb.Fatalf("cannot read the address of the gateway: %v", err)
	}
	return g
}

// cpuTime returns the CPU time of the gateway and this process together.
func (g *gatewayProcess) cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var gatewayTime time.Duration
	if _, err := fmt.Fprintln(g.in); err != nil {
		tb.Fatal(err)
	}
	if _, err := fmt.Fscanln(g.out, &gatewayTime); err != nil {
		tb.Fatalf("cannot read the CPU time of the gateway: %v", err)
	}
	return gatewayTime + cpuTime()
}

// gatewayMain runs a gateway until standard input ends. It prints the address
// of the gateway, and the CPU time of the process for each line of input.
func gatewayMain(spec string) error {
	var routes []gateway.Route
	if err := json.Unmarshal([]byte(spec), &routes); err != nil {
		return err
	}
	proxy, ln, err := newGateway(routes)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- proxy.Run(ctx, ln) }()
	fmt.Println(ln.Addrs()[0])
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(int64(cpuTime()))
	}
	stop()
	return <-done
}
