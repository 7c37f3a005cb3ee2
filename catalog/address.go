// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/tlsutil"
)

// CheckAddress says why nobody could dial a, or nil: the host is an IP address or a DNS name, the port 1 to 65535. Other
// datacenters' gateways dial what stands in a record.
func CheckAddress(a *pb.Address) error {
	if a.GetPort() == 0 || a.GetPort() > 65535 {
		return errors.New("port is not a number from 1 to 65535")
	}
	if ip, err := netip.ParseAddr(a.GetAddress()); err == nil {
		if ip.IsUnspecified() {
			return fmt.Errorf("%s is unspecified: nobody can dial it", ip)
		}
		return nil
	}
	return checkHost(a.GetAddress())
}

// checkHost wants a DNS name. Upper case and underscores are in use.
func checkHost(name string) error {
	if len(name) > 253 {
		return fmt.Errorf("host %.20q... is longer than 253 characters", name)
	}
	for label := range strings.SplitSeq(strings.ToLower(strings.TrimSuffix(name, ".")), ".") {
		if tlsutil.CheckLabel(strings.ReplaceAll(label, "_", "x")) != nil {
			return fmt.Errorf("host %q is neither an IP address nor a DNS name", name)
		}
	}
	return nil
}

// parseAddr splits host:port. what names it in errors.
func parseAddr(what, s string) (*pb.Address, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return nil, fmt.Errorf("%s address %.300q is not host:port", what, s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		n = 0 // as wrong
	}
	a := &pb.Address{Address: host, Port: uint32(n)}
	if err := CheckAddress(a); err != nil {
		return nil, fmt.Errorf("%s address %.300q: %w", what, s, err)
	}
	return a, nil
}

// maxMeta bounds the metadata of one gateway, in bytes: it is replicated to every datacenter.
const maxMeta = 4 << 10

func checkMeta(meta map[string]string) error {
	n := 0
	for k, v := range meta {
		n += len(k) + len(v)
	}
	if n > maxMeta {
		return fmt.Errorf("meta has %d bytes: more than %d", n, maxMeta)
	}
	return nil
}
