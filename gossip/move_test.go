// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"errors"
	"fmt"
	"testing"
)

// errorList is an error as memberlist makes it.
type errorList []error

func (l errorList) Error() string {
	return fmt.Sprintf("%d errors occurred:\n\t%v\n", len(l), []error(l))
}
func (l errorList) WrappedErrors() []error { return l }

func TestOneLine(t *testing.T) {
	list := errorList{errors.New("failed to join 192.0.2.1:8300: no"), errors.New("failed to join 10.0.0.1:8300: refused")}
	got := oneLine(list, []string{"*.dc2/192.0.2.1:8300", "10.0.0.1:8300"})
	if want := "no; failed to join 10.0.0.1:8300: refused"; got.Error() != want {
		t.Errorf("got %q, want %q", got, want)
	}
	plain := errors.New("plain")
	if oneLine(plain, nil) != plain || oneLine(nil, nil) != nil {
		t.Error("another error was changed")
	}
}
