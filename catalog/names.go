// SPDX-License-Identifier: MPL-2.0

package catalog

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxName bounds the name of a node, and the id and name of a service or check, in bytes. Two of them make a resource's name.
const maxName = 250

var nodeEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

// underNode is the name of the resource of a service or check with that id: ids are unique on their node alone. The gateways'
// have another, recordName.
func underNode(node, id string) string { return nodeEscaper.Replace(node) + "/" + id }

// checkText wants a name as free as Consul's: 1 to maxName bytes of UTF-8 without control characters.
func checkText(what, s string) error {
	switch {
	case s == "":
		return errors.New(what + " is empty")
	case len(s) > maxName:
		return fmt.Errorf("%s %.30q... has %d bytes: more than %d", what, s, len(s), maxName)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%s %q is not UTF-8 without control characters", what, s)
	}
	return nil
}

// checkRecordName is the rule for the names of catalog resources: whatever the escaped name of a node and an id can be.
func checkRecordName(node, id string) error {
	if n := len(underNode(node, id)); n > 512 {
		return fmt.Errorf("node %.30q... and id %.30q... have %d bytes together: more than 512", node, id, n)
	}
	return nil
}
