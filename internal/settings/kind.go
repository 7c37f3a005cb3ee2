// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"github.com/hashicorp/hcl/v2"
)

// A Kind is a kind of settings file: of a server or of a gateway. It
// returns a pointer to new settings with default values, and the function
// check. The caller decodes a file into these settings, and then check
// validates them.
type Kind func() (defaults any, check func() error)

// CheckFile returns all errors of the file at path with the content body, which
// has settings of one of kinds. An error of a value has the line of the
// attribute.
func CheckFile(path string, body hcl.Body, kinds []Kind) error {
	attrs, _ := body.JustAttributes() // Decode reports the errors
	values, check := detectKind(attrs, kinds)()
	if err := Decode(body, values); err != nil {
		return err
	}
	var errs []error
	for _, err := range Split(check()) {
		errs = append(errs, withLine(path, attrs, err))
	}
	return Join(errs...)
}

// detectKind returns the kind whose settings include the largest number of the
// attributes. If several kinds include the same number, it returns the first.
func detectKind(attrs hcl.Attributes, kinds []Kind) Kind {
	return slices.MaxFunc(kinds, func(a, b Kind) int {
		return cmp.Compare(matchCount(attrs, a), matchCount(attrs, b))
	})
}

// matchCount returns the number of attributes that are settings of kind.
func matchCount(attrs hcl.Attributes, kind Kind) (n int) {
	values, _ := kind()
	Each(values, func(f Field) {
		if _, ok := attrs[f.Name]; ok {
			n++
		}
	})
	return n
}

var firstWord = regexp.MustCompile(`^[A-Za-z0-9_]+`)

// attributeOf maps the first word of an error about a file to the attribute
// that names the file.
var attributeOf = map[string]string{"CA": "ca_file", "cert": "cert_file", "key": "key_file"}

// withLine adds the path to err, and the line of the attribute that the first
// word of err names.
func withLine(path string, attrs hcl.Attributes, err error) error {
	word := firstWord.FindString(err.Error())
	if a, ok := attrs[cmp.Or(attributeOf[word], word)]; ok {
		return fmt.Errorf("%s:%d: %w", path, a.Range.Start.Line, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}
