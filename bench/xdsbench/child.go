// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api/pb"
)

// contender is a server with resources for proxies.
type contender struct {
	// register adds the service to a gRPC server.
	register func(*grpc.Server)
	// addProxies makes the proxies known. Clients connect later.
	addProxies func() error
	// change changes a gateway of one datacenter for all proxies.
	change func(port uint32) error
}

// contenders start a contender. It stops when ctx ends.
var contenders = map[string]func(ctx context.Context, l load) (*contender, error){
	"wanfed":          startWanfed,
	"snapshot":        func(ctx context.Context, l load) (*contender, error) { return startSnapshot(ctx, l, false) },
	"snapshot-shared": func(ctx context.Context, l load) (*contender, error) { return startSnapshot(ctx, l, true) },
	"linear":          startLinear,
}

// usage is the state of the process of a contender.
type usage struct {
	// CPUBefore and CPUAfter are the processor time before and after the garbage
	// collection of this measurement.
	CPUBefore, CPUAfter time.Duration
	Memory              uint64 // bytes of heap and stacks in use
	RSS                 uint64 // bytes, maximum so far
}

// reply is the reply to a command.
type reply struct {
	Address string // the first reply
	Usage   usage  // the reply to "usage"
	Error   string
}

// serve runs a contender until in ends. It writes its address to out, and then a
// reply for each line of in: "proxies", "change PORT" or "usage".
func serve(ctx context.Context, name string, l load, in io.Reader, out io.Writer) error {
	start := contenders[name]
	if start == nil {
		return fmt.Errorf("no contender %q: use one of %s", name, strings.Join(names, ", "))
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	c, err := start(ctx, l)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	c.register(srv)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() { srv.Stop(); <-served }()

	enc := json.NewEncoder(out)
	if err := enc.Encode(reply{Address: ln.Addr().String()}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var r reply
		var err error
		var port uint32
		switch line := lines.Text(); line {
		case "proxies":
			err = c.addProxies()
		case "usage":
			r.Usage = measureUsage()
		default:
			if _, err = fmt.Sscanf(line, "change %d", &port); err == nil {
				err = c.change(port)
			}
		}
		if err != nil {
			r.Error = err.Error()
		}
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func measureUsage() (u usage) {
	u.CPUBefore, _ = processorTime()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Memory = m.HeapAlloc + m.StackInuse
	u.CPUAfter, u.RSS = processorTime()
	return u
}

func processorTime() (cpu time.Duration, rss uint64) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), uint64(r.Maxrss) << 10
}

// gatewayName returns the name of proxy i.
func gatewayName(i int) string { return fmt.Sprintf("gw%d", i) }

// changed is the datacenter whose gateway changes.
const changed = "dc0000"

// message returns the data of all datacenters. The gateway of changed has port.
func message(l load, port uint32) *pb.GatewaySnapshot {
	m := &pb.GatewaySnapshot{Datacenter: "dc", Domain: "wanfed"}
	for i := range 3 {
		m.Servers = append(m.Servers, &pb.SnapshotServer{
			Node: fmt.Sprintf("srv%d", i), Address: fmt.Sprintf("10.0.0.%d:8300", i+1),
		})
	}
	for i := range l.datacenters {
		d := &pb.SnapshotDatacenter{Name: fmt.Sprintf("dc%04d", i)}
		for j := range 2 {
			d.Gateways = append(d.Gateways, fmt.Sprintf("198.51.%d.%d:8443", i%256, 2*(i/256)+j))
		}
		if d.Name == changed {
			d.Gateways[0] = fmt.Sprintf("198.51.100.1:%d", port)
		}
		m.Datacenters = append(m.Datacenters, d)
	}
	return m
}
