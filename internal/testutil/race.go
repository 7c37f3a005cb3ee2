// SPDX-License-Identifier: MPL-2.0

//go:build race

package testutil

const raceDetector = true
