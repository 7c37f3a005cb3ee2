// SPDX-License-Identifier: MPL-2.0

// Package apply creates and updates resources through the HTTP API, as "wanfed
// resource apply" does.
//
//	plan, err := apply.Check(ctx, client, "dc1", resources)
//	for _, item := range plan {
//		err = item.Write(ctx)
//		fmt.Println(item.Action, item.Result.ID.Name)
//	}
//
// Check validates all resources on the server, compares them with the stored
// resources and returns a plan. Check writes nothing. Write writes one item of
// the plan.
//
// A resource without metadata keeps the stored metadata. Write reads it before
// the write, and repeats both if another writer changed the resource in
// between. A resource with a version replaces only that version.
//
// Check sends two requests per resource, and Write one. If another writer
// changes the resource, Write tries up to five times. There is no transaction:
// after an error, the items before it are written. Both functions block until
// the server responds or ctx ends.
//
// The package starts no goroutine and keeps no state.
package apply
