// SPDX-License-Identifier: MPL-2.0

// Package apply creates and updates resources through the HTTP API, as "wanfed
// resource apply" does.
//
//	plan, err := apply.Check(ctx, client, opts, resources)
//	for _, item := range plan {
//		err = item.Write(ctx)
//		fmt.Println(item.Action, item.Result.ID.Name)
//	}
//
// Check validates all resources on the server, compares them with the stored ones
// and returns a plan. Nothing is written before all resources are valid. Write
// writes one item of the plan.
//
// A resource without metadata keeps the stored metadata. To keep them, Write
// replaces only the version that it has read (compare and swap), and retries
// after a conflict. A resource with a version replaces only that version.
//
// The package starts no goroutine and keeps no state.
package apply
