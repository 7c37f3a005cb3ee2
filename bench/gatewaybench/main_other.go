// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "gatewaybench: needs Linux")
	os.Exit(1)
}
