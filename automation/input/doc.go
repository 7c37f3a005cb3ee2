// SPDX-License-Identifier: MPL-2.0

// Package input has the inputs of a run: the values of the variables that the
// data of conditions and inputs defines, and their types in Terraform.
package input
