// SPDX-License-Identifier: MPL-2.0

//go:build !unix

package subprocess

import (
	"errors"
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

func ownSession() *syscall.SysProcAttr { return nil }

func terminate(*os.Process) error { return errors.ErrUnsupported }

func killGroup(p *os.Process) error { return p.Kill() }
