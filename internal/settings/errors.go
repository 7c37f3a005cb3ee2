// SPDX-License-Identifier: MPL-2.0

package settings

import (
	"errors"
	"fmt"
	"strings"
)

// MaxErrors is the maximum number of errors that are printed for one file or
// one call of Join.
const MaxErrors = 50

// Join combines errors into one error whose text is a list. Without errors,
// Join returns nil. It returns a single error unchanged.
func Join(errs ...error) error {
	var all list
	for _, err := range errs {
		all = all.add(err)
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

// Split returns the errors that Join combined.
func Split(err error) []error {
	if all, ok := errors.AsType[list](err); ok {
		return all
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

type list []error

// add appends err. If err is only a list of errors, add appends each of them.
func (l list) add(err error) list {
	if err == nil {
		return l
	}
	if multi, ok := err.(interface{ Unwrap() []error }); ok {
		inner := multi.Unwrap()
		_, joined := err.(list)
		if joined || err.Error() == errors.Join(inner...).Error() {
			for _, e := range inner {
				l = l.add(e)
			}
			return l
		}
	}
	return append(l, err)
}

func (l list) Unwrap() []error { return l }

func (l list) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d errors:", len(l))
	for i, err := range l {
		if i == MaxErrors {
			fmt.Fprintf(&b, "\n  - and %d more", len(l)-i)
			break
		}
		b.WriteString("\n  - " + err.Error())
	}
	return b.String()
}
