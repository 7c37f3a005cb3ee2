// SPDX-License-Identifier: MPL-2.0

package demo

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports are chosen below the range of outgoing connections. A port that was free
// then stays free until its server binds it, unless a program binds that very
// port.
const (
	firstPort = 10000
	lastPort  = 29999
)

// freePorts returns n different ports on which nothing listens.
func freePorts(n int) ([]int, error) {
	var ports []int
	var failed error
	for range 100 * n {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			failed = err
			continue
		}
		defer ln.Close() // so that it is not chosen twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("find %d free ports: %w", n, failed)
}
