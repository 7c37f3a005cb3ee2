// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
)

func TestProbeTarget(t *testing.T) {
	for _, tt := range []struct {
		probe      *pb.Probe
		want       string // host and port; empty: an error
		onLoopback bool
	}{
		{&pb.Probe{Http: "http://web.example/health?x=1"}, "web.example 80", false},
		{&pb.Probe{Http: "https://10.0.0.1:8443"}, "10.0.0.1 8443", false},
		{&pb.Probe{Http: "https://[2001:db8::1]/"}, "2001:db8::1 443", false},
		{&pb.Probe{Http: "http://LocalHost:1/"}, "LocalHost 1", true},
		{&pb.Probe{Http: "http://localhost:1/"}, "localhost 1", true},
		{&pb.Probe{Tcp: "127.9.9.9:1"}, "127.9.9.9 1", true},
		{&pb.Probe{Tcp: "[::1]:1"}, "::1 1", true},
		{&pb.Probe{Tcp: "[::ffff:127.0.0.1]:1"}, "::ffff:127.0.0.1 1", true},
		{&pb.Probe{Tcp: "[64:ff9b::7f00:1]:1"}, "64:ff9b::7f00:1 1", true},
		{&pb.Probe{Grpc: "10.0.0.1:50051/api.Users"}, "10.0.0.1 50051", false},
		{&pb.Probe{Grpc: "10.0.0.1"}, "", false},
		{&pb.Probe{Http: "ftp://web.example/"}, "", false},
		{&pb.Probe{Http: "http://"}, "", false},
		{&pb.Probe{Http: "http://u:p@web.example/"}, "", false},
		{&pb.Probe{Tcp: "0.0.0.0:80"}, "", false},
		{&pb.Probe{Tcp: "web.example:0"}, "", false},
		{&pb.Probe{}, "", false},
	} {
		host, port, err := ProbeTarget(tt.probe)
		got := host + " " + port
		if err != nil {
			got = ""
		}
		if got != tt.want || tt.want != "" && ProbesLoopback(tt.probe) != tt.onLoopback {
			t.Errorf("ProbeTarget(%v) = %q, %v, loopback %v, want %q, %v",
				tt.probe, got, err, ProbesLoopback(tt.probe), tt.want, tt.onLoopback)
		}
	}
}

// FuzzProbeTarget checks that no target leads to a host that CheckProbeAddress
// does not see.
func FuzzProbeTarget(f *testing.F) {
	for _, s := range []string{"http://web.example/", "https://[::1]:8443/x", "http://a@b/", "http://[::1%25lo]/", "http://0x7f.1/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p := &pb.Probe{Http: s, Interval: durationpb.New(time.Second)}
		host, port, err := ProbeTarget(p)
		if err == nil && (host == "" || port == "") {
			t.Errorf("ProbeTarget(%q) = %q, %q, want a host and a port", s, host, port)
		}
		if checkProbe(p) == nil && err != nil {
			t.Errorf("checkProbe(%q) = nil, want an error like ProbeTarget: %v", s, err)
		}
	})
}

func TestCheckProbe(t *testing.T) {
	valid := func(change func(p *pb.Probe)) *pb.Probe {
		p := &pb.Probe{Http: "http://web.example/", Interval: durationpb.New(time.Second)}
		change(p)
		return p
	}
	if err := checkProbe(valid(func(*pb.Probe) {})); err != nil {
		t.Errorf("checkProbe() of a valid probe = %v, want nil", err)
	}
	header := func(name, value string) func(p *pb.Probe) {
		return func(p *pb.Probe) { p.Header = map[string]*pb.ProbeHeader{name: {Values: []string{value}}} }
	}
	for want, change := range map[string]func(p *pb.Probe){
		"exactly one":             func(p *pb.Probe) { p.Tcp = "web.example:80" },
		"interval 999ms":          func(p *pb.Probe) { p.Interval = durationpb.New(999 * time.Millisecond) },
		"interval 0s":             func(p *pb.Probe) { p.Interval = nil },
		"timeout 1m1s":            func(p *pb.Probe) { p.Timeout = durationpb.New(61 * time.Second) },
		"method":                  func(p *pb.Probe) { p.Method = "POST" },
		"only http has a method":  func(p *pb.Probe) { p.Http, p.Grpc, p.Method = "", "web.example:80", "GET" },
		"would be readable":       header("authorization", "Bearer x"),
		"has a control character": header("X", "a\r\nAuthorization: x"),
		"not the name":            header("X: y", "a"),
		"more than 16 fields":     header("X", strings.Repeat("x", 3000)),
		"above failures":          func(p *pb.Probe) { p.FailuresBeforeWarning = 2 },
		"above 1000":              func(p *pb.Probe) { p.SuccessBeforePassing = 1001 },
		"more than 2048":          func(p *pb.Probe) { p.Http += strings.Repeat("x", 2048) },
		"more than 250":           func(p *pb.Probe) { p.TlsServerName = strings.Repeat("x", 251) },
	} {
		if err := checkProbe(valid(change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("checkProbe() = %v, want an error with %q", err, want)
		}
	}
}

func TestCheckProbeAddress(t *testing.T) {
	server := netip.MustParseAddr("10.0.0.1")
	for ip, want := range map[string]bool{
		"10.0.0.1": true, "10.0.0.9": true, "198.51.100.1": true, "2001:db8::1": true, "fd00::1": true, "100.64.0.1": true,
		"169.254.169.254": false, "169.254.170.2": false, "fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false,
		"100.100.100.200": false, "168.63.129.16": false, "::ffff:169.254.169.254": false, "64:ff9b::a9fe:a9fe": false,
		"2002:a9fe:a9fe::1": false, "2002:7f00:1::": false, "0.0.0.0": false, "0.1.2.3": false, "::": false, "224.0.0.1": false,
		"ff02::1": false, "255.255.255.255": false, "127.0.0.1": false, "::1": false, "::ffff:127.0.0.1": false,
	} {
		if err := CheckProbeAddress(netip.MustParseAddr(ip), server, false); (err == nil) != want {
			t.Errorf("CheckProbeAddress(%s) = %v, want permitted: %v", ip, err, want)
		}
	}
	for _, ip := range []string{"127.0.0.1", "::1"} {
		if err := CheckProbeAddress(netip.MustParseAddr(ip), server, true); err != nil {
			t.Errorf("CheckProbeAddress(%s) of a written loopback address = %v, want nil", ip, err)
		}
	}
	local := netip.MustParseAddr("169.254.169.254")
	if err := CheckProbeAddress(local, local, false); err != nil {
		t.Errorf("CheckProbeAddress() of the address of the server = %v, want nil", err)
	}
}

// Users and sync daemons may not make a server connect to its loopback addresses.
func TestAuthorize_Probe(t *testing.T) {
	for _, tt := range []struct {
		role   tlsutil.Role
		target string
		want   bool
	}{
		{tlsutil.RoleOperator, "127.0.0.1:80", true},
		{tlsutil.RoleOperator, "10.0.0.1:80", true},
		{tlsutil.RoleUser, "10.0.0.1:80", true},
		{tlsutil.RoleUser, "localhost:80", false},
		{tlsutil.RoleUser, "[::1]:80", false},
		{tlsutil.RoleSync, "10.0.0.1:80", false},
		{tlsutil.RoleClient, "10.0.0.1:80", false},
		{tlsutil.RoleGateway, "10.0.0.1:80", false},
	} {
		c := &pb.Check{Node: "sync.s1", CheckId: "c", Type: TypeTCP, Probe: &pb.Probe{Tcp: tt.target}}
		r, err := resource.NewNamed(CheckType, "sync.s1/c", resource.CheckUTF8Name, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := authorize(tlsutil.Peer{Role: tt.role, DC: "dc1"}, resource.VerbWrite, r); (err == nil) != tt.want {
			t.Errorf("authorize(%s, %s) = %v, want permitted: %v", tt.role, tt.target, err, tt.want)
		}
	}
}

// TestTTLMonitor_Probe reports results of a check with a probe. It does not
// expire, and its service is deleted after its critical limit.
func TestTTLMonitor_Probe(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := resourcetest.NewStore()
		defer b.Close()
		m, err := NewTTLMonitor(b, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- m.Run(t.Context()) }()
		defer func() { <-done }()
		defer b.Close()
		node := testPut(t, b, NodeType, "srv1", nil, &pb.Node{Node: "srv1", Address: "192.0.2.1"})
		web := testPut(t, b, ServiceType, "srv1/web", node, &pb.Service{Node: "srv1", Id: "web", Service: "web"})
		testPut(t, b, CheckType, "srv1/up", web, &pb.Check{
			Node: "srv1", CheckId: "up", Status: StatusPassing, ServiceId: "web", Type: TypeTCP,
			DeregisterAfter: durationpb.New(time.Minute),
			Probe:           &pb.Probe{Tcp: "10.0.0.1:80", Interval: durationpb.New(time.Second)},
		})
		synctest.Wait()
		update := CheckUpdate{Node: "srv1", CheckID: "up", Status: StatusPassing, Output: "ok", Probed: true}
		if err := m.Update(t.Context(), update); err != nil {
			t.Fatalf("Update() of a probe = %v, want nil", err)
		}
		forged := update
		forged.Probed = false
		if err := m.Update(t.Context(), forged); err == nil {
			t.Error("Update() without a probe = nil, want an error")
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if _, c, err := m.read(t.Context(), "srv1/up"); err != nil || c == nil || c.Status != StatusPassing || c.Output != "ok" {
			t.Fatalf("check after an hour = %v, %v, want passing with ok", c, err)
		}
		update.Status, update.Output = StatusCritical, "refused"
		if err := m.Update(t.Context(), update); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if _, err := b.Read(t.Context(), resource.Eventual, web); err != nil {
			t.Errorf("service after 59 s = %v, want it", err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, err := b.Read(t.Context(), resource.Eventual, web); err == nil {
			t.Error("service after 61 s exists, want it deleted")
		}
	})
}
