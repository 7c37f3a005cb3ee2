// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package gatewayd

import "syscall"

func envoyAttr() *syscall.SysProcAttr { return nil }
