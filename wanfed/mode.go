// SPDX-License-Identifier: MPL-2.0

package wanfed

import "fmt"

// Mode says which hops to other datacenters are tried first. In every mode the others are the fallback.
type Mode string

const (
	// ModeLocal prefers gateways of the own datacenter: one place through which everything leaves it. The default.
	ModeLocal Mode = "local"
	// ModeRemote prefers to dial the far datacenter's gateways, and passes the own ones by.
	ModeRemote Mode = "remote"
	// ModeAuto prefers what measures best. Among ways that are about as fast, the own gateways win.
	ModeAuto Mode = "auto"
)

// Check says what is wrong with m, which may come from a file. Empty stands for ModeLocal.
func (m Mode) Check() error {
	switch m {
	case "", ModeLocal, ModeRemote, ModeAuto:
		return nil
	}
	return fmt.Errorf("%q is none of %s, %s and %s", string(m), ModeLocal, ModeRemote, ModeAuto)
}

// class is what a hop's kind counts in m: a hop of a lower class is tried before any of a higher one.
func (m Mode) class(h Path) int {
	switch {
	case m == ModeAuto, (m == ModeRemote) != h.Local:
		return 0
	}
	return 1
}
