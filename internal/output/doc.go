// SPDX-License-Identifier: MPL-2.0

// Package output prints the results of commands as tables of 80 columns, as
// wide tables or as JSON.
//
//	printer := output.AddFlag(cmd)
//	...
//	out := printer()
//	err := out.Print(states, func() error { return out.Table(rows) })
//
// Characters that could control a terminal or break a table are replaced. A
// text outside a table passes Printable first, if another program has written
// it.
package output
