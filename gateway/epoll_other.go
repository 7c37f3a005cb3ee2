// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package gateway

const epollWorks = false

func newEpollEngine(*Proxy, []boundSocket) engine { return nil }
