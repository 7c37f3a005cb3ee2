// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"encoding/json"
	"fmt"

	tfjson "github.com/hashicorp/terraform-json"

	"github.com/wanfed/wanfed/automation/driver"
)

// countChanges counts the managed resources in the JSON form of a plan. A
// replacement adds and destroys.
func countChanges(b []byte) (c driver.Changes, err error) {
	var plan tfjson.Plan
	if err := json.Unmarshal(b, &plan); err != nil {
		return c, fmt.Errorf("read the plan: %w", err)
	}
	for _, r := range plan.ResourceChanges {
		if r.Mode != tfjson.ManagedResourceMode || r.Change == nil {
			continue
		}
		switch a := r.Change.Actions; {
		case a.Replace():
			c.Add++
			c.Destroy++
		case a.Create():
			c.Add++
		case a.Update():
			c.Change++
		case a.Delete():
			c.Destroy++
		}
	}
	if s := plan.PriorState; s != nil && s.Values != nil {
		c.Total = countResources(s.Values.RootModule)
	}
	return c, nil
}

// countResources counts the managed resources of a module and its modules.
func countResources(m *tfjson.StateModule) (n int) {
	if m == nil {
		return 0
	}
	for _, r := range m.Resources {
		if r.Mode == tfjson.ManagedResourceMode {
			n++
		}
	}
	for _, child := range m.ChildModules {
		n += countResources(child)
	}
	return n
}
