// SPDX-License-Identifier: MPL-2.0

// Package driver defines what executes the runs of a task: a Driver. Packages
// automation/terraform and automation/exec implement it.
package driver
