// SPDX-License-Identifier: MPL-2.0

// Package filter evaluates expressions of the parameter ?filter= of Consul's
// API. An expression uses the names of the JSON of a type of package api:
//
//	expr, err := filter.Parse[api.ServiceEntry](`"v1" in Service.Tags and Checks.Status != critical`)
//	ok, err := expr.Matches(entry)
//
// An Expression is immutable. Any goroutine may use it.
package filter
