// SPDX-License-Identifier: MPL-2.0

//go:build unix

package server

import "syscall"

func fchmod(fd uintptr, mode uint32) error { return syscall.Fchmod(int(fd), mode) }
